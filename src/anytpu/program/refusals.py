"""Rejection of Programs that cannot leave this process: with Python callbacks or large constants.

Idea: both are detected in the traced step (its jaxpr), not in a failure of the exporter, because an equation of the
jaxpr still has its source line.

Rule: weights are inputs. An array in the closure of a step would be fixed at its present value, and stored in every
copy of the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.extend.source_info_util import summarize

from anytpu.errors import ProgramError
from anytpu.program.jaxprs import inner_jaxprs
from anytpu.program.leaves import leaf_text

CALLBACKS = {
    "pure_callback": "write it with jax.numpy, or compute it before the step and pass it in through the batch",
    "io_callback": "return the value with the outputs of the step, and use it between the steps",
    "debug_callback": "remove the jax.debug.callback or the jax.debug.breakpoint",
    "debug_print": "remove the jax.debug.print",
    "outside_call": "return the value with the outputs of the step, and use it between the steps",
}
"""The primitives that call back into Python, each with the alternative."""

_CHECK = "check"
"""The primitive of a `checkify.check` without `checkify.checkify`: it raises the error from Python."""

CONSTANT_BYTES = 2**20
"""Maximum size of a constant in a program, in bytes."""


def refuse_callbacks(name: str, jaxpr: ClosedJaxpr) -> None:
    """Raise `ProgramError`, with the line of source, if the traced step of program `name` calls back into Python."""
    for level, _, scope in _levels(jaxpr, ""):
        for equation in level.eqns:
            called, inside = equation.primitive.name, _join(scope, equation)
            place = f"{f' inside {inside!r}' if inside else ''}, at {summarize(equation.source_info)}"
            if called in CALLBACKS:
                raise ProgramError(
                    f"The step of {name!r} calls back into Python ({called}{place}). A program that leaves this "
                    f"process cannot take Python code along: {CALLBACKS[called]}, or run the program in this process "
                    "only."
                )
            if called == _CHECK and not equation.params["debug"]:
                raise ProgramError(
                    f"The step of {name!r} raises an error from inside the program (checkify.check{place}). Return it "
                    "with the outputs: error, result = checkify.checkify(step)(state, batch). Or remove the check."
                )


def refuse_large_constants(name: str, jaxpr: ClosedJaxpr) -> None:
    """Raise `ProgramError` if the traced step of program `name` closed over an array of more than `CONSTANT_BYTES`."""
    for value, user in _constants(jaxpr):
        size_bytes = math.prod(value.shape) * value.dtype.itemsize
        if size_bytes > CONSTANT_BYTES:
            line = f", used at {summarize(user.source_info)}" if user is not None else ""
            raise ProgramError(
                f"The step of {name!r} holds the constant {leaf_text(value)} ({size_bytes / 2**20:.1f} MiB{line}). "
                "A program takes its arrays as inputs: pass this one in through the state or the batch. A constant may "
                f"have up to {CONSTANT_BYTES / 2**20:.0f} MiB."
            )


def _constants(jaxpr: ClosedJaxpr) -> Iterator[tuple[Any, JaxprEqn | None]]:
    """Yield each constant array of the jaxpr and its nested jaxprs, with the first equation that uses it."""
    for level, constants, _ in _levels(jaxpr, ""):
        for variable, value in zip(level.constvars, constants, strict=False):
            yield value, next((eqn for eqn in level.eqns if any(variable is operand for operand in eqn.invars)), None)
        for equation in level.eqns:
            for operand in equation.invars:
                if isinstance(operand, Literal) and getattr(operand.val, "shape", ()):
                    yield operand.val, equation


def _levels(jaxpr: ClosedJaxpr | Jaxpr, scope: str) -> Iterator[tuple[Jaxpr, Sequence[Any], str]]:
    """Yield the jaxpr and each nested one, with its constants and its name scope."""
    level, constants = (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, ClosedJaxpr) else (jaxpr, ())
    yield level, constants, scope
    for equation in level.eqns:
        for inner in inner_jaxprs(equation):
            yield from _levels(inner, _join(scope, equation))


def _join(scope: str, equation: JaxprEqn) -> str:
    parts = (scope, *str(equation.source_info.name_stack).split("/"))
    return "/".join(part for part in parts if part not in ("", "vmap()"))
