"""`Command`: one sub-command of `anytpu`, and the arguments that several of them take.

Rule: what stands here, and at the top of each command's file, is loaded for `--help`; nothing heavy is imported there.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Command:
    """A sub-command.

    Attributes:
        name: what is typed.
        summary: what it does, in one line without a full stop.
        description: what it does, in a paragraph or more, as its help shows it.
        add_arguments: gives a parser its arguments.
        run: does the work and returns the exit status.
        actions: what a command does that is several, such as `anytpu chip run`; it has then no arguments of its own.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    actions: tuple[Command, ...] = ()


def add_system_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser --tpu and --cores: which system to use, and how many cores of it."""
    parser.add_argument(
        "--tpu",
        metavar="NAME",
        default="",
        help="which system: local (a TPU or GPU of this machine), virtual, or a virtual slice such as v2-8; "
        "without it, the best that is found",
    )
    parser.add_argument(
        "--cores", metavar="N", type=positive_integer, help="how many cores; without it, all there are, 8 virtual ones"
    )


def positive_integer(text: str) -> int:
    """Read a positive integer from the command line.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)
