"""The terminal that reports are printed on: its width, its colours, and what it can draw.

Rule: nobody prints but through a `Console` made here. Colours go away with NO_COLOR and where the output is not a
terminal; what is drawn with blocks and lines has a form in plain ASCII.
"""

from __future__ import annotations

import textwrap
from typing import IO

from rich.console import Console


def open_console(file: IO[str] | None = None) -> Console:
    """Return a console on a stream; None is standard output, looked up at each print.

    It takes text as it is: no markup, no numbers coloured by guess. In a pipe or a file it is 80 columns wide.

    Example:
        >>> open_console().print("loss [0]")
        loss [0]
    """
    return _Console(file=file, markup=False, highlight=False, emoji=False)


class _Console(Console):
    """A console that leaves a reader who went away to whoever prints; rich would end the process, with status 1."""

    def on_broken_pipe(self) -> None:
        """Raise the `BrokenPipeError` that rich has caught."""
        raise


def say(console: Console, text: str = "", style: str | None = None) -> None:
    """Print text: on a terminal wrapped between words, elsewhere as it is, so that a log stays searchable."""
    console.print(text, style=style, soft_wrap=not console.is_terminal)


def hang(start: str, text: str, width: int) -> list[str]:
    """Return a text wrapped to the right of how its first line starts. No word is broken, so a path stays in one piece.

    Args:
        start: the beginning of the first line, as wide as the others are indented.
        text: what follows.
        width: columns of the terminal.

    Example:
        >>> hang("GPU  ", "this machine has no NVIDIA GPU", 24)
        ['GPU  this machine has no', '     NVIDIA GPU']
    """
    room = max(width - len(start), 20)
    lines = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]
    return [(start if number == 0 else " " * len(start)) + line for number, line in enumerate(lines)]


def is_ascii_only(console: Console) -> bool:
    """Say whether the stream's encoding has no block characters, as with `PYTHONIOENCODING=ascii`."""
    return console.options.ascii_only
