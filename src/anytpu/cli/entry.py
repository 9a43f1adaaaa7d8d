"""`main`: the entry point of the command `anytpu`, and the parser of the whole command line.

Rule: an error that anytpu raises on purpose is one message on stderr and exit status 2. Any other exception is a
bug of anytpu and keeps its traceback.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib.metadata
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from anytpu import _by_name, _env
from anytpu.cli import checkpoints, compare, demo, devices, docs, doctor, env, launch, report, run, watch
from anytpu.cli.command import Command
from anytpu.errors import AnyTPUError, SettingError

USAGE_STATUS = 2
INTERRUPTED_STATUS = 130
"""Exit status of a command that Ctrl-C ended, as shells report it."""
CLOSED_PIPE_STATUS = 141
"""Exit status of a command whose reader closed the pipe, as in `anytpu env | head -1`."""

_WITHOUT_JAX = ("docs", "doctor", "env", "launch", "port", "report", "run", "watch", "worker")
"""Commands that need no JAX, or that report its settings themselves."""
_WITHOUT_KERAS = (*_WITHOUT_JAX, "devices", "worker")

HELP_COLUMNS = 80

_DESCRIPTION = """\
The TPU programming system for any machine. It finds a TPU or a GPU, or makes a
virtual TPU from the CPU, and trains on all of its cores.
"""


@functools.cache
def commands() -> tuple[Command, ...]:
    """Return every command, in the order of the help."""
    return (
        demo.COMMAND,
        devices.COMMAND,
        doctor.COMMAND,
        env.COMMAND,
        compare.COMMAND,
        _by_name.load("plan command"),
        _by_name.load("shard command"),
        _by_name.load("kernel command"),
        _by_name.load("chip command"),
        run.COMMAND,
        launch.COMMAND,
        checkpoints.COMMAND,
        report.COMMAND,
        watch.COMMAND,
        _by_name.load("port command"),
        _by_name.load("worker command"),
        docs.COMMAND,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Args:
        words: the words after `anytpu`; None is `sys.argv[1:]`.

    Example:
        >>> main(["--version"])  # doctest: +ELLIPSIS
        anytpu ...
        0
    """
    words = sys.argv[1:] if words is None else list(words)
    try:
        status = _run(words)
        sys.stdout.flush()  # inside the try, so that a closed pipe is caught
        return status
    except AnyTPUError as error:
        if "--traceback" in words:
            traceback.print_exception(error)
        print(f"anytpu: {error}", file=sys.stderr)
        return USAGE_STATUS
    except RuntimeError as error:
        known = _env.platforms_error(error)
        if known is None or "--traceback" in words:
            raise
        print(f"anytpu: {known}", file=sys.stderr)
        return USAGE_STATUS
    except KeyboardInterrupt:
        print("anytpu: interrupted", file=sys.stderr)
        return INTERRUPTED_STATUS
    except BrokenPipeError:
        # Python flushes stdout again at exit; redirect it so that this cannot fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE_STATUS


def _run(words: list[str]) -> int:
    check_command(words)
    parser = build_parser()
    arguments, unknown = parser.parse_known_args(_renewed(words))
    if unknown:
        command = " ".join(filter(None, (arguments.command, getattr(arguments, "action", None))))
        parser.refuse(unknown, command, words[_place_of_command(words) + 1 :][:1])
    if arguments.version:
        print(f"anytpu {importlib.metadata.version('anytpu')}")
    elif arguments.command is None:
        parser.print_help()
    else:
        runs_program = getattr(arguments, "try_them", False)
        if arguments.command not in _WITHOUT_JAX or runs_program:
            _env.check_jax_settings()
        if arguments.command not in _WITHOUT_KERAS or runs_program:
            _env.require_keras_on_jax()
        return arguments.run(arguments)
    return 0


class _Formatter(argparse.HelpFormatter):
    """Fills each paragraph of a description separately; an indented paragraph, such as an example, is kept as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join(
            paragraph if paragraph[:1] == " " else super(_Formatter, self)._fill_text(paragraph, width, indent)
            for paragraph in paragraphs
        )

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Show the value after the last name only, "-o, --output FILE", as Python 3.13 does; older ones repeat it."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


_Format = functools.partial(_Formatter, width=HELP_COLUMNS, max_help_position=20)


class Parser(argparse.ArgumentParser):
    """A parser that raises anytpu's errors and whose help has the same width on every terminal."""

    def __init__(self, **keywords: Any) -> None:
        """Make a parser. It refuses abbreviated options, so that a new option never changes a script's meaning."""
        super().__init__(formatter_class=_Format, allow_abbrev=False, **keywords)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise SettingError(f"{message}; see `{self.prog} --help`")

    def refuse(self, unknown: Sequence[str], command: str, typed: Sequence[str] = ()) -> NoReturn:
        """Raise an error about unknown words.

        Args:
            unknown: the words.
            typed: the words behind the command.
            command: the command that they follow, with its action ("chip run"), or "".
        """
        full_command = f"{self.prog} {command}" if command else self.prog
        near = _near_option(unknown, help_of(command))
        if job := next((word for word in typed if command and f"{command} {word}" not in _parsers()), None):
            # `plan scalin train.py:f`: the name of an action was read as the job.
            actions = [name.split()[1] for name in _parsers() if name.startswith(f"{command} ")]
            near = near or next(
                (f"`{self.prog} {command} {name}`" for name in difflib.get_close_matches(job, actions, 1)), None
            )
        hint = f"did you mean {near}? " if near else ""
        raise SettingError(f"{full_command} does not take {' '.join(unknown)}; {hint}see `{full_command} --help`")


def build_parser() -> Parser:
    """Return the parser of the command line."""
    return _parsers()[""]


def help_of(name: str) -> str:
    """Return the help text of a command; "" stands for `anytpu` itself."""
    return _parsers()[name].format_help()


@functools.cache
def _parsers() -> dict[str, Parser]:
    """Return the parser of each command and action by name; "" has the top-level parser."""
    parser = Parser(
        prog="anytpu",
        description=_DESCRIPTION,
        epilog="See `anytpu COMMAND --help` for one command. Start with `anytpu demo`.",
    )
    parser.add_argument("--version", action="store_true", help="print the version of anytpu and exit")
    _add_traceback(parser, default=False)
    choices = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    parsers = {"": parser}
    for command in commands():
        command_parser = _add_command(choices, command)
        parsers[command.name] = command_parser
        if command.run is not None:
            parsers |= {name: _add_command(choices, action, name) for name, action in _named_actions(command)}
        elif command.actions:
            actions = command_parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
            parsers |= {f"{command.name} {action.name}": _add_command(actions, action) for action in command.actions}
    return parsers


def _named_actions(command: Command) -> list[tuple[str, Command]]:
    """Return the actions of a command that also runs alone, by their names as a command: "plan ways"."""
    return [(f"{command.name} {action.name}", action) for action in command.actions if command.run is not None]


def _place_of_command(words: Sequence[str]) -> int:
    """Return the index of the first word that is not an option, or the number of words."""
    return next((index for index, word in enumerate(words) if not word.startswith("-")), len(words))


def _command_named(word: str) -> Command | None:
    """Return the command of a name, also of an old one."""
    return next((command for command in commands() if word in (command.name, command.old_name)), None)


def _renewed(words: list[str]) -> list[str]:
    """Renew old spellings, and say so; join a command and its action to one word if the command also runs alone."""
    place = _place_of_command(words)
    command = _command_named(words[place]) if words[place:] else None
    if command is None:
        return words
    before, after = words[:place], words[place + 1 :]
    if words[place] != command.name:
        new = f"type: anytpu {command.name}"
        print(f"anytpu: `anytpu {words[place]}` goes with the next version; {new}", file=sys.stderr)
    after = command.renewed(after) if command.renewed else after
    names = [name for name, _ in _named_actions(command)]
    name = " ".join([command.name, *after[:1]])
    return [*before, name, *after[1:]] if name in names else [*before, command.name, *after]


def _add_command(choices: Any, command: Command, name: str = "") -> Parser:
    # An action of a command that runs alone is not listed: the command's own help lists it.
    shown = {} if name else {"help": command.summary}
    command_parser = choices.add_parser(name or command.name, description=command.description, **shown)
    if command.add_arguments is not None:
        command.add_arguments(command_parser)
    _add_traceback(command_parser, default=argparse.SUPPRESS)
    command_parser.set_defaults(run=command.run)
    return command_parser


def check_command(words: Sequence[str]) -> None:
    """Refuse an unknown command, and suggest the nearest known one.

    Raises:
        SettingError: the first word that is not an option is not a command.
    """
    word = next(iter(words[_place_of_command(words) :]), None)
    if word is None or _command_named(word) is not None:
        return
    names = [command.name for command in commands()]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean `anytpu {near[0]}`?" if near else f"the commands are {', '.join(names)}"
    raise SettingError(f"there is no command {word!r}; {hint}")


def _near_option(unknown: Sequence[str], text: str) -> str | None:
    """Return the help text's option that is nearest to the words, "--infer" for "--mode infer", or None."""
    known = list(dict.fromkeys(re.findall(r"^  (?:-\w, )?(--[a-z][a-z-]*)", text, re.MULTILINE)))
    candidates = [f"--{word.lstrip('-').partition('=')[0]}" for word in unknown if word.strip("-")]
    same = [word for word in candidates if word in known]
    similar = [near for word in candidates for near in difflib.get_close_matches(word, known, 1, 0.8)]
    return next(iter([*same, *similar]), None)


def _add_traceback(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument(
        "--traceback", action="store_true", default=default, help="show the whole traceback of an error"
    )
