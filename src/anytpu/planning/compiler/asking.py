"""One request to a child process, and an error that says what to do if the child does not answer."""

from __future__ import annotations

import signal
from typing import Any

from anytpu import units
from anytpu.errors import CompilerMissingError, NoAnswerError, PlanError
from anytpu.planning.compiler.children import borrowed
from anytpu.planning.compiler.parent import EndedError, TooLargeError, TooSlowError, UnusableError
from anytpu.planning.compiler.request import Request

_LESS_MEMORY = (
    "Plan on a machine with more memory, one system at a time, or plan less: layers that are alike compile once inside "
    "a jax.lax.scan."
)

Answer = tuple[dict[str, Any], bytes]
"""A child's answer: a header, and the text of the compiled program."""


def asked(request: Request, program: str, target: str, timeout_s: float) -> Answer:
    """Return a child's answer to a request.

    Args:
        request: the program to compile.
        program: the program's name, for the errors.
        target: the target's name, for the errors.
        timeout_s: time limit, seconds.

    Raises:
        CompilerMissingError: the compiler cannot be loaded.
        NoAnswerError: it took too long or too much memory.
        PlanError: it ended otherwise.
    """
    try:
        return _of_a_child(request, timeout_s)
    except TooSlowError:
        raise NoAnswerError(_too_slow(program, target, timeout_s)) from None
    except TooLargeError as error:
        raise NoAnswerError(_too_large(program, target, error)) from None
    except UnusableError as error:
        raise CompilerMissingError(
            f"The TPU compiler, libtpu, is installed and cannot be used here: {error}. Install the one that this JAX "
            "pairs with: pip install --force-reinstall 'anytpu[plan]'"
        ) from None
    except EndedError as error:
        kind = NoAnswerError if error.status == -signal.SIGKILL else PlanError
        raise kind(ended(program, target, error)) from None


def _of_a_child(request: Request, timeout_s: float) -> Answer:
    header, code = request.header(), request.code.content
    try:
        with borrowed() as child:
            return child.ask(header, code, timeout_s)
    except EndedError as error:
        if error.status != 0:
            raise
    with borrowed() as child:  # The last child had waited too long for a request, and has just exited.
        return child.ask(header, code, timeout_s)


def _too_slow(program: str, target: str, timeout_s: float) -> str:
    return (
        f"The TPU compiler took longer than {timeout_s:g} s for {program!r} on {target}, and was ended. Give "
        f"it more with timeout_s={2 * timeout_s:g} (--timeout {2 * timeout_s:g}), or plan less at a time: layers that "
        "are alike compile once inside a jax.lax.scan."
    )


def _too_large(program: str, target: str, error: TooLargeError) -> str:
    taken, limit = units.format_bytes(error.taken_bytes), units.format_bytes(error.limit_bytes)
    return (
        f"The TPU compiler took {taken} of this machine's memory for {program!r} on {target}, and was ended: the "
        f"limit for all compilations together is {limit}, 90 % of the memory that was available. {_LESS_MEMORY}"
    )


def ended(program: str, target: str, error: EndedError) -> str:
    """Return the error text for a compiler that ended before it answered: how it ended, its last output, and what to
    do."""
    status = error.status
    if status == -signal.SIGKILL:
        seen = f", when it had at least {units.format_bytes(error.peak_bytes)}" if error.peak_bytes else ""
        return (
            f"The TPU compiler was ended by SIGKILL while it compiled {program!r} for {target}{seen}. Most likely this "
            f"machine ran out of memory. Your program is not harmed. {_LESS_MEMORY}"
        )
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    words = f" Its last words:\n{error.last_words}\n" if error.last_words else " It said nothing. "
    return (
        f"The TPU compiler {how} while it compiled {program!r} for {target}.{words}"
        "Your program is not harmed. Try another batch size or another TPU, or another compiler: "
        "pip install --upgrade 'anytpu[plan]'"
    )
