"""The parser of the whole command line, made of the commands."""

from __future__ import annotations

import argparse
import difflib
import functools
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from anytpu.cli import chip, compare, demo, devices, doctor, env, plan, port
from anytpu.cli.command import Command
from anytpu.errors import SettingError

COMMANDS: tuple[Command, ...] = (
    demo.COMMAND,
    devices.COMMAND,
    doctor.COMMAND,
    env.COMMAND,
    compare.COMMAND,
    plan.COMMAND,
    chip.COMMAND,
    port.COMMAND,
)
"""Every command, in the order of the help."""

HELP_COLUMNS = 80

_DESCRIPTION = """\
The TPU programming system for any machine: it finds a TPU or a GPU, or makes a
virtual TPU of the CPU, and trains on all of its cores.
"""


class _Formatter(argparse.HelpFormatter):
    """Fills each paragraph of a description by itself, and leaves one that is indented, such as examples, as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join(
            one if one[:1] == " " else super(_Formatter, self)._fill_text(one, width, indent) for one in paragraphs
        )

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Show the value behind the last name only, "-o, --output FILE", on every Python as 3.13 does."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


_Format = functools.partial(_Formatter, width=HELP_COLUMNS, max_help_position=20)


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are anytpu's errors, and whose help is the same on every terminal."""

    def __init__(self, **keywords: Any) -> None:
        """Make a parser; abbreviated options are refused, so that a new option never changes what a script means."""
        super().__init__(formatter_class=_Format, allow_abbrev=False, **keywords)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise SettingError(f"{message}; `{self.prog} --help` shows what it takes")

    def refuse(self, unknown: Sequence[str], command: str) -> NoReturn:
        """Raise because of words that no parser took.

        Args:
            unknown: the words.
            command: the command that they were given to, with its action ("chip run"), or "".
        """
        taker = f"{self.prog} {command}" if command else self.prog
        near = _near_option(unknown, help_of(command))
        hint = f"did you mean {near}? " if near else ""
        raise SettingError(f"{taker} does not take {' '.join(unknown)}; {hint}`{taker} --help` shows what it takes")


def build_parser() -> Parser:
    """Return the parser of the command line."""
    return _parsers()[""]


def help_of(name: str) -> str:
    """Return the help of a command; "" is that of `anytpu` itself."""
    return _parsers()[name].format_help()


def _parsers() -> dict[str, Parser]:
    """Return the parser of each command, and under "" the one that they are all part of."""
    parser = Parser(
        prog="anytpu",
        description=_DESCRIPTION,
        epilog="`anytpu COMMAND --help` tells more about one command. Start with `anytpu demo`.",
    )
    parser.add_argument("--version", action="store_true", help="print the version of anytpu and exit")
    _add_traceback(parser, default=False)
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    parsers = {"": parser}
    for command in COMMANDS:
        described = _add_command(commands, command)
        parsers[command.name] = described
        if command.actions:
            actions = described.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
            parsers |= {f"{command.name} {one.name}": _add_command(actions, one) for one in command.actions}
    return parsers


def _add_command(commands: Any, command: Command) -> Parser:
    described = commands.add_parser(command.name, help=command.summary, description=command.description)
    command.add_arguments(described)
    _add_traceback(described, default=argparse.SUPPRESS)
    described.set_defaults(run=command.run)
    return described


def check_command(words: Sequence[str]) -> None:
    """Refuse a command that does not exist, and name the nearest one that does.

    Raises:
        SettingError: the first word that is no option is no command.
    """
    names = [command.name for command in COMMANDS]
    word = next((word for word in words if not word.startswith("-")), None)
    if word is None or word in names:
        return
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean `anytpu {near[0]}`?" if near else f"the commands are {', '.join(names)}"
    raise SettingError(f"there is no command {word!r}; {hint}")


def _near_option(unknown: Sequence[str], text: str) -> str | None:
    """Return the option that one of some words may mean, in the text of a help: "--infer" for "--mode infer"."""
    known = list(dict.fromkeys(re.findall(r"--[a-z][a-z-]*", text)))
    meant = [f"--{word.lstrip('-').partition('=')[0]}" for word in unknown if word.strip("-")]
    same = [word for word in meant if word in known]
    return next(iter([*same, *(one for word in meant for one in difflib.get_close_matches(word, known, 1, 0.8))]), None)


def _add_traceback(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument(
        "--traceback", action="store_true", default=default, help="show the whole traceback of an error"
    )
