"""`main`: the entry point of the command `anytpu`.

Rule: an error that anytpu raises on purpose is one message on stderr and exit status 2. Any other exception is a
bug of anytpu and keeps its traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import anytpu
from anytpu import _env
from anytpu.cli.parser import build_parser, check_command
from anytpu.errors import AnyTPUError

USAGE_STATUS = 2
INTERRUPTED_STATUS = 130
"""Exit status of a command that Ctrl-C ended, as shells report it."""
CLOSED_PIPE_STATUS = 141
"""Exit status of a command whose reader closed the pipe, as in `anytpu env | head -1`."""


_WITHOUT_JAX = ("doctor", "env", "docs", "port")
"""Commands that need no JAX, or that report its settings themselves."""
_WITHOUT_KERAS = (*_WITHOUT_JAX, "devices")


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
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        parser.refuse(unknown, " ".join(filter(None, (arguments.command, getattr(arguments, "action", None)))))
    if arguments.version:
        print(f"anytpu {anytpu.__version__}")
    elif arguments.command is None:
        parser.print_help()
    else:
        if arguments.command not in _WITHOUT_JAX:
            _env.check_jax_settings()
        if arguments.command not in _WITHOUT_KERAS:
            _env.require_keras_on_jax()
        return arguments.run(arguments)
    return 0
