"""Printing of a program and of a predicted run, in the character set of the stream."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from anytpu.chip.timing.record import Timing
from anytpu.report.chip.lanes import with_titles
from anytpu.report.chip.program_lines import program_lines
from anytpu.report.chip.record import ChipPage
from anytpu.report.chip.timing_lines import timing_lines
from anytpu.report.terminal import is_ascii_only

_PLAIN = str.maketrans({"µ": "u", "─": "-", "·": ",", "…": "~"})


def print_page(console: Console, page: ChipPage) -> None:
    """Print a program and its predicted run; in plain ASCII if the stream lacks block characters."""
    _print(console, lambda width, _: program_lines(page.image, page.layers, width))
    console.print()
    print_timing(console, page.timing)


def print_timing(console: Console, timing: Timing) -> None:
    """Print a predicted run; in plain ASCII if the stream lacks block characters."""
    titled = with_titles(timing)
    _print(console, lambda width, ascii_only: timing_lines(titled, width, ascii_only))


def _print(console: Console, lines: Callable[[int, bool], Iterator[Text | Table]]) -> None:
    if not is_ascii_only(console):
        _print_lines(console, lines(console.width, False))
        return
    stream = io.StringIO()
    plain = Console(file=stream, width=console.width, markup=False, highlight=False, emoji=False)
    _print_lines(plain, lines(console.width, True))
    text = stream.getvalue().translate(_PLAIN).encode("ascii", "backslashreplace").decode()
    console.print(Text(text), end="", soft_wrap=True)


def _print_lines(console: Console, lines: Iterator[Text | Table]) -> None:
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, Text))
