"""One question to a child, and what becomes of one that it does not answer: a sentence that says what to do."""

from __future__ import annotations

import signal
from typing import Any

from anytpu.errors import CompilerMissingError, PlanError
from anytpu.planning.compiler.children import borrowed
from anytpu.planning.compiler.parent import EndedError, TooSlowError, UnusableError
from anytpu.planning.compiler.request import Request

Answer = tuple[dict[str, Any], bytes]
"""What a child answers: a header, and the text of the compiled program."""


def asked(request: Request, program: str, target: str, timeout_s: float) -> Answer:
    """Return what a child answers.

    Args:
        request: what to compile.
        program: the program's name, for the errors.
        target: the target's name, for the errors.
        timeout_s: how long it may take, seconds.

    Raises:
        CompilerMissingError: the compiler cannot be loaded.
        PlanError: it ended or took too long.
    """
    try:
        return _of_a_child(request, timeout_s)
    except TooSlowError:
        raise PlanError(_too_slow(program, target, timeout_s)) from None
    except UnusableError as error:
        raise CompilerMissingError(
            f"The TPU compiler, libtpu, is installed and cannot be used here: {error}. Install the one that this JAX "
            "pairs with: pip install --force-reinstall 'anytpu[plan]'"
        ) from None
    except EndedError as error:
        raise PlanError(_ended(program, target, error)) from None


def _of_a_child(request: Request, timeout_s: float) -> Answer:
    header, code = request.header(), request.code.content
    try:
        with borrowed() as child:
            return child.ask(header, code, timeout_s)
    except EndedError as error:
        if error.status != 0:
            raise
    with borrowed() as child:  # The last one had waited too long for a request, and just left.
        return child.ask(header, code, timeout_s)


def _too_slow(program: str, target: str, timeout_s: float) -> str:
    return (
        f"The TPU compiler took longer than {timeout_s:g} s for {program!r} on {target}, and was ended. Give "
        f"it more with timeout_s={2 * timeout_s:g} (--timeout {2 * timeout_s:g}), or plan less at a time: layers that "
        "are alike compile once inside a jax.lax.scan."
    )


def _ended(program: str, target: str, error: EndedError) -> str:
    status = error.status
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    words = f" Its last words:\n{error.last_words}\n" if error.last_words else " It said nothing. "
    return (
        f"The TPU compiler {how} while it compiled {program!r} for {target}.{words}"
        "Your program is not harmed. Try another batch size or another TPU, or another compiler: "
        "pip install --upgrade 'anytpu[plan]'"
    )
