"""`Command`: a sub-command of `anytpu`, and the arguments that several of them share.

Rule: `--help` loads this file and the top level of each command's file, so neither imports anything heavy.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True)
class Command:
    """A sub-command.

    Attributes:
        name: the command's name on the command line.
        summary: its purpose in one line without a full stop.
        description: the text of its help, one or more paragraphs.
        add_arguments: adds its arguments to a parser; None for a command with actions.
        run: executes it and returns the exit status; None for a command with actions.
        actions: nested sub-commands, such as `anytpu chip run`. One must be given if the command has no `run`.
        old_name: the command's name in earlier versions, which works in this one; None without one.
        renewed: returns the words after the command in the spelling of this version; None: there is no older one.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
    run: Callable[[argparse.Namespace], int] | None = None
    actions: tuple[Command, ...] = ()
    old_name: str | None = None
    renewed: Callable[[Sequence[str]], list[str]] | None = None


def add_system_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --tpu and --cores: the system to use and the number of its cores."""
    parser.add_argument(
        "--tpu",
        metavar="NAME",
        default="",
        help="the system: local (a TPU or GPU of this machine), virtual, or a virtual slice such as v2-8 "
        "(default: the best system found)",
    )
    parser.add_argument(
        "--cores", metavar="N", type=positive_integer, help="number of cores (default: all; 8 on a virtual system)"
    )


def positive_integer(text: str) -> int:
    """Parse a positive integer of the command line.

    Raises:
        argparse.ArgumentTypeError: the text is not a positive integer.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)


def non_negative_integer(text: str) -> int:
    """Parse an integer of the command line that may be 0.

    Raises:
        argparse.ArgumentTypeError: the text is not an integer, or is negative.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be 0 or a positive integer, not {text!r}")
    return int(text)
