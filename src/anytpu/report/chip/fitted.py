"""Tables that fit a terminal: long names are cut in the middle, then the least important columns are dropped."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from anytpu.report.wording import one_line

_MIN_NAME = 18


def fitted(
    titles: Sequence[str],
    rows: Sequence[Sequence[Text]],
    width: int,
    texts: int = 1,
    spare: Sequence[str] = (),
) -> Table:
    """Return a table that is at most as wide as a terminal.

    Args:
        titles: titles of the columns.
        rows: cells of each row; the first cell is a name.
        width: columns of the terminal.
        texts: number of leading columns that are texts; the others are numbers.
        spare: titles of columns that may be dropped, in the order of dropping.
    """
    longest = max((len(row[0]) for row in rows), default=0)
    dropped = 0
    while True:
        kept = [index for index, title in enumerate(titles) if title not in spare[:dropped]]
        kept_titles, cells = [titles[index] for index in kept], [[row[index] for index in kept] for row in rows]
        excess = max(natural_width(kept_titles, cells, texts) - width, 0)
        if excess <= max(longest - _MIN_NAME, 0) or dropped == len(spare):
            return _table(kept_titles, [_named(row, longest - excess) for row in cells], texts)
        dropped += 1


def natural_width(titles: Sequence[str], rows: Sequence[Sequence[Text]], texts: int = 1) -> int:
    """Return the width of a table in which nothing is shortened, in columns of the terminal."""
    console = Console(width=1000)
    return Measurement.get(console, console.options, _table(titles, rows, texts)).maximum


def _named(row: Sequence[Text], room: int) -> list[Text]:
    return [Text(middle(row[0].plain, max(room, _MIN_NAME)), row[0].style), *row[1:]]


def middle(name: str, room: int) -> str:
    """Cut a long name in the middle, since both ends distinguish layers.

    Example:
        >>> middle("conv2_block1_0_conv", 14), middle("dense", 14)
        ('conv2_b…0_conv', 'dense')
    """
    name = one_line(name)
    if len(name) <= room:
        return name
    end = (room - 1) // 2
    return f"{name[: room - 1 - end]}…{name[-end:]}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[Text]], texts: int) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, title in enumerate(titles):
        # As a last resort, texts other than the name are wrapped.
        shown.add_column(title, justify="left" if index < texts else "right", no_wrap=not 0 < index < texts)
    for row in rows:
        shown.add_row(*row)
    return shown
