"""Tables that fit a terminal: where there is no room, names lose their middle, then columns go that matter least."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from anytpu.report.wording import one_line

_LEAST = 18


def fitted(
    titles: Sequence[str],
    rows: Sequence[Sequence[Text]],
    width: int,
    texts: int = 1,
    spare: Sequence[str] = (),
) -> Table:
    """Return a table as wide as a terminal at most.

    Args:
        titles: of the columns.
        rows: cells of each row, the first a name.
        width: columns of the terminal.
        texts: how many of the first columns are texts; the others are numbers.
        spare: titles of columns that go where there is no room, the first first.
    """
    longest = max((len(row[0]) for row in rows), default=0)
    gone = 0
    while True:
        kept = [number for number, title in enumerate(titles) if title not in spare[:gone]]
        chosen, cells = [titles[number] for number in kept], [[row[number] for number in kept] for row in rows]
        excess = max(natural_width(chosen, cells, texts) - width, 0)
        if excess <= max(longest - _LEAST, 0) or gone == len(spare):
            return _table(chosen, [_named(row, longest - excess) for row in cells], texts)
        gone += 1


def natural_width(titles: Sequence[str], rows: Sequence[Sequence[Text]], texts: int = 1) -> int:
    """Return how many columns of a terminal a table takes in which nothing is shortened."""
    console = Console(width=1000)
    return Measurement.get(console, console.options, _table(titles, rows, texts)).maximum


def _named(row: Sequence[Text], room: int) -> list[Text]:
    return [Text(middle(row[0].plain, max(room, _LEAST)), row[0].style), *row[1:]]


def middle(name: str, room: int) -> str:
    """Return a name that fits, without its middle where it is too long: both ends tell layers apart.

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
    for number, title in enumerate(titles):
        # Where nothing else makes enough room, the other texts are folded.
        shown.add_column(title, justify="left" if number < texts else "right", no_wrap=not 0 < number < texts)
    for row in rows:
        shown.add_row(*row)
    return shown
