"""`without_debugging`: removes debugging callbacks from a traced step.

Idea: `jax.debug.print` and similar functions return nothing, so no result depends on them. A plan removes them and
reports that.

Rule: callbacks that return a value (`pure_callback`, `io_callback`) are kept: the step depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.extend.source_info_util import summarize

from anytpu.program.jaxprs import rewrite_jaxprs

_NAMES = {
    "debug_print": "jax.debug.print",
    "debug_callback": "jax.debug.callback",
    "inspect_sharding": "jax.debug.inspect_array_sharding",
}


def without_debugging(jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, tuple[str, ...]]:
    """Return a traced step without debugging callbacks, and the removed calls, "jax.debug.print at step.py:12".

    Args:
        jaxpr: the trace of the step.

    Example:
        >>> traced = jax.make_jaxpr(lambda x: jax.debug.print("{}", x) or x + 1)(1.0)
        >>> quiet, left_out = without_debugging(traced)
        >>> len(quiet.jaxpr.eqns), left_out[0][:18]
        (1, 'jax.debug.print at')
    """
    left_out: list[JaxprEqn] = []
    quiet = rewrite_jaxprs(jaxpr, lambda inner: _quiet_jaxpr(inner, left_out))
    return quiet, tuple(dict.fromkeys(_described(left_out)))


def _quiet_jaxpr(jaxpr: Jaxpr, left_out: list[JaxprEqn]) -> Jaxpr:
    """Return a jaxpr without debugging equations, and append these to `left_out`."""
    kept, removed = [], list[JaxprEqn]()

    def quiet(inner: Jaxpr) -> Jaxpr:
        return _quiet_jaxpr(inner, removed)

    for equation in jaxpr.eqns:
        if equation.primitive.name in _NAMES:
            removed.append(equation)
        else:
            params = {name: rewrite_jaxprs(value, quiet) for name, value in equation.params.items()}
            kept.append(equation.replace(params=params))
    left_out += removed
    # An equation inherits the effects of the equations inside it. Remove these effects too: no other equation has them.
    removed_effects = {effect for equation in removed for effect in equation.effects}
    return jaxpr.replace(eqns=kept, effects=jaxpr.effects - removed_effects) if removed else jaxpr


def _described(equations: Iterable[JaxprEqn]) -> list[str]:
    return [f"{_called(equation)} at {summarize(equation.source_info)}" for equation in equations]


def _called(equation: JaxprEqn) -> str:
    """Return the name of the function that the user called."""
    frames = getattr(equation.source_info.traceback, "frames", ())
    is_breakpoint = any(frame.function_name == "breakpoint" for frame in frames)
    return "jax.debug.breakpoint" if is_breakpoint else _NAMES[equation.primitive.name]
