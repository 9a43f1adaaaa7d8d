"""`without_debugging`: a traced step without the calls of Python that only print or watch.

Idea: `jax.debug.print` and its siblings return nothing, so no number depends on them, and a step without them computes
the same. A plan leaves them out and says so.

Rule: what returns a value (`pure_callback`, `io_callback`) stays: without it the step would be another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.extend.source_info_util import summarize

from anytpu.program.jaxprs import with_items

_NAMES = {
    "debug_print": "jax.debug.print",
    "debug_callback": "jax.debug.callback",
    "inspect_sharding": "jax.debug.inspect_array_sharding",
}


def without_debugging(jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, tuple[str, ...]]:
    """Return a traced step without what only prints or watches, and each such call: "jax.debug.print at step.py:12".

    Args:
        jaxpr: the step as it was traced.

    Example:
        >>> traced = jax.make_jaxpr(lambda x: jax.debug.print("{}", x) or x + 1)(1.0)
        >>> quiet, left_out = without_debugging(traced)
        >>> len(quiet.jaxpr.eqns), left_out[0][:18]
        (1, 'jax.debug.print at')
    """
    left_out: list[JaxprEqn] = []
    quiet = _quiet(jaxpr, left_out)
    return quiet, tuple(dict.fromkeys(_described(left_out)))


def _quiet(value: Any, left_out: list[JaxprEqn]) -> Any:
    """Return a jaxpr, or a parameter of an equation that may hold some, without the equations that are left out."""
    # `Jaxpr` first: since jax 0.11 the two are one class, and `.jaxpr` of an instance is itself.
    if isinstance(value, Jaxpr):
        return _quiet_jaxpr(value, left_out)
    if isinstance(value, ClosedJaxpr):
        return value.replace(jaxpr=_quiet(value.jaxpr, left_out))
    if isinstance(value, tuple | list) and any(isinstance(one, ClosedJaxpr | Jaxpr) for one in value):
        return with_items(value, [_quiet(one, left_out) for one in value])
    return value


def _quiet_jaxpr(jaxpr: Jaxpr, left_out: list[JaxprEqn]) -> Jaxpr:
    kept, here = [], list[JaxprEqn]()
    for equation in jaxpr.eqns:
        if equation.primitive.name in _NAMES:
            here.append(equation)
        else:
            params = {name: _quiet(value, here) for name, value in equation.params.items()}
            kept.append(equation.replace(params=params))
    left_out += here
    # An equation around another has its effects: they go with it. All that has these effects is left out.
    gone = {effect for equation in here for effect in equation.effects}
    return jaxpr.replace(eqns=kept, effects=jaxpr.effects - gone) if here else jaxpr


def _described(equations: Iterable[JaxprEqn]) -> list[str]:
    return [f"{_called(one)} at {summarize(one.source_info)}" for one in equations]


def _called(equation: JaxprEqn) -> str:
    """Return the function that the user called."""
    frames = getattr(equation.source_info.traceback, "frames", ())
    is_breakpoint = any(frame.function_name == "breakpoint" for frame in frames)
    return "jax.debug.breakpoint" if is_breakpoint else _NAMES[equation.primitive.name]
