"""Consoles for reports: width, colours, character set, wrapped text and bars.

Rule: all printing goes through a `Console` made here. Colours are off with NO_COLOR and if the output is not a
terminal. Reports draw with block and line characters; a stream that lacks them gets their ASCII form.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Collection, Iterable
from typing import IO, Any, cast

from rich import box
from rich.console import Console, OverflowMethod
from rich.measure import Measurement
from rich.table import Table

_PLAIN = str.maketrans("▏▎▍▌▋▊▉█▀▄─━╸╺µ·…⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "########'.----u,~-\\|/-\\|/-\\")
"""ASCII form of each drawing character of the reports."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


def open_console(file: IO[str] | None = None) -> Console:
    """Return a console on a stream; None: standard output, looked up at each print.

    It prints text unchanged: markup and automatic highlighting are off. In a pipe or a file it is 80 columns wide.

    Example:
        >>> open_console().print("loss [0]")
        loss [0]
    """
    return _Console(file=cast(Any, _PlainStream(file)), markup=False, highlight=False, emoji=False)


class _Console(Console):
    """A console that raises BrokenPipeError to its caller; rich would end the process with status 1."""

    def on_broken_pipe(self) -> None:
        """Raise the `BrokenPipeError` that rich has caught."""
        raise


class _PlainStream:
    """A stream that can write every character; if its encoding lacks one, as ASCII.

    Rich would draw other tables on an ASCII stream, so it is told that the encoding is UTF-8.
    """

    encoding = "utf-8"

    def __init__(self, file: IO[str] | None) -> None:
        self._given = file

    @property
    def _file(self) -> IO[str]:
        return self._given or sys.stdout

    def write(self, text: str) -> int:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        if not encoding.lower().startswith("utf"):
            text = text.translate(_PLAIN).encode("ascii", "backslashreplace").decode()
        return self._file.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def say(console: Console, text: str = "", style: str | None = None) -> None:
    """Print text, wrapped between words on a terminal and unwrapped elsewhere, so that a log can be searched."""
    console.print(text, style=style, soft_wrap=not console.is_terminal)


def hang(start: str, text: str, width: int) -> list[str]:
    """Wrap a text with a hanging indent. Words, and so paths, are never broken, nor a percentage from its sign.

    Args:
        start: beginning of the first line; the other lines are indented by its width.
        text: the text to wrap.
        width: columns of the terminal.

    Example:
        >>> hang("GPU  ", "this machine has no NVIDIA GPU", 24)
        ['GPU  this machine has no', '     NVIDIA GPU']
    """
    room = max(width - len(start), 20)
    # A no-break space is no place to break for `textwrap`.
    kept = text.replace(" %", "\u00a0%")
    lines = textwrap.wrap(kept, room, break_on_hyphens=False, break_long_words=False) or [""]
    return [f"{' ' * len(start) if index else start}{line}".replace("\u00a0", " ") for index, line in enumerate(lines)]


def bar(fraction: float, width: int) -> str:
    """Return a bar over a fraction of the width, at least one character long.

    Example:
        >>> bar(1.0, 4), bar(0.625, 4), bar(0.0, 4)
        ('████', '██▌', '▏')
    """
    eighths = max(round(fraction * width * 8), 1)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def compact_table(
    titles: Iterable[str],
    left: Collection[str] = (),
    wrapped: Collection[str] = (),
    overflow: OverflowMethod = "ellipsis",
) -> Table:
    """Return a table without rows. It has a line below its titles and one space between columns.

    Args:
        titles: titles of the columns.
        left: titles of the columns that are aligned left, as texts are; numbers are aligned right.
        wrapped: titles of the columns that may take several lines of a narrow terminal.
        overflow: the treatment of a word that is wider than its column, as rich names it.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title in titles:
        justify = "left" if title in left else "right"
        table.add_column(title, justify=justify, overflow=overflow, no_wrap=title not in wrapped)
    return table


def table_width(table: Table) -> int:
    """Return the width of a table in which nothing is shortened, in columns of the terminal."""
    console = Console(width=1000, markup=False, emoji=False)
    return Measurement.get(console, console.options, table).maximum
