"""Consoles for reports: width, colours and character set.

Rule: all printing goes through a `Console` made here. Colours are off with NO_COLOR and if the output is not a
terminal. Drawings with block and line characters also have an ASCII form.
"""

from __future__ import annotations

import textwrap
from typing import IO

from rich.console import Console


def open_console(file: IO[str] | None = None) -> Console:
    """Return a console on a stream; None: standard output, looked up at each print.

    It prints text unchanged: markup and automatic highlighting are off. In a pipe or a file it is 80 columns wide.

    Example:
        >>> open_console().print("loss [0]")
        loss [0]
    """
    return _Console(file=file, markup=False, highlight=False, emoji=False)


class _Console(Console):
    """A console that raises BrokenPipeError to its caller; rich would end the process with status 1."""

    def on_broken_pipe(self) -> None:
        """Raise the `BrokenPipeError` that rich has caught."""
        raise


def say(console: Console, text: str = "", style: str | None = None) -> None:
    """Print text, wrapped between words on a terminal and unwrapped elsewhere, so that a log can be searched."""
    console.print(text, style=style, soft_wrap=not console.is_terminal)


def hang(start: str, text: str, width: int) -> list[str]:
    """Wrap a text with a hanging indent. Words, and so paths, are never broken.

    Args:
        start: beginning of the first line; the other lines are indented by its width.
        text: the text to wrap.
        width: columns of the terminal.

    Example:
        >>> hang("GPU  ", "this machine has no NVIDIA GPU", 24)
        ['GPU  this machine has no', '     NVIDIA GPU']
    """
    room = max(width - len(start), 20)
    lines = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]
    return [(start if index == 0 else " " * len(start)) + line for index, line in enumerate(lines)]


def is_ascii_only(console: Console) -> bool:
    """Return whether the stream's encoding lacks block characters, as with `PYTHONIOENCODING=ascii`."""
    return console.options.ascii_only
