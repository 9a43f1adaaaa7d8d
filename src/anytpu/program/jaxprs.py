"""Access to the jaxprs inside an equation, and the rewriting of a trace.

`without_debugging` is a rewriting: `jax.debug.print` and similar functions return nothing, so no result depends on
them. A plan removes them and reports that. Callbacks that return a value (`pure_callback`, `io_callback`) are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun
from jax.extend.source_info_util import summarize

_CALLS = ("jaxpr", "call_jaxpr", "call")
_DEBUGGING = {
    "debug_print": "jax.debug.print",
    "debug_callback": "jax.debug.callback",
    "inspect_sharding": "jax.debug.inspect_array_sharding",
}


def level_of(jaxpr: ClosedJaxpr | Jaxpr) -> Jaxpr:
    """Return the open jaxpr of a closed one, without its constants."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def with_variables(
    jaxpr: Jaxpr, constvars: Sequence[Any], invars: Sequence[Any], eqns: Sequence[JaxprEqn], outvars: Sequence[Any]
) -> Jaxpr:
    """Return a jaxpr with other variables and equations, and with the same values of its constants, if it has them."""
    # From JAX 0.12 on a jaxpr holds these values, and `replace` drops them when it gets `constvars`.
    values = {"consts": jaxpr.consts} if isinstance(jaxpr, ClosedJaxpr) else {}
    return jaxpr.replace(constvars=constvars, invars=invars, eqns=eqns, outvars=outvars, **values)


def function_of(jaxpr: Jaxpr) -> Callable[..., list[Any]]:
    """Return the function that a jaxpr without constants, or with their values, computes."""
    return jaxpr_as_fun(jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ()))


def aval_of(atom: Any) -> Any:
    """Return the shape and dtype of a variable or literal; JAX types them too widely to have any."""
    return atom.aval


def shape_of(atom: Any) -> tuple[int, ...]:
    """Return the shape of a variable or literal; () for a value without one, such as a token."""
    return tuple(getattr(atom.aval, "shape", ()))


def inner_jaxprs(equation: JaxprEqn) -> Iterator[ClosedJaxpr | Jaxpr]:
    """Yield each jaxpr among the parameters of an equation: bodies, branches, called functions.

    Example:
        >>> loop = jax.make_jaxpr(lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: x + 1, x))(0)
        >>> len(list(inner_jaxprs(loop.jaxpr.eqns[0])))
        2
    """
    for value in equation.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            if isinstance(inner, ClosedJaxpr | Jaxpr):
                yield inner


def with_items(container: Any, items: Sequence[Any]) -> Any:
    """Return a tuple, a namedtuple or a list of the same type with other items.

    `custom_linear_solve` has its jaxprs in a namedtuple, whose class takes them as separate arguments.

    Args:
        container: a parameter of an equation.
        items: the new items, as many as the container has.

    Example:
        >>> with_items((1, 2), [3, 4])
        (3, 4)
    """
    return type(container)(*items) if hasattr(container, "_fields") else type(container)(items)


def called_jaxpr(equation: JaxprEqn) -> Jaxpr | None:
    """Return the jaxpr that an equation runs on its own operands; None for any other equation."""
    inner = next((equation.params[name] for name in _CALLS if name in equation.params), None)
    level = level_of(inner) if isinstance(inner, ClosedJaxpr | Jaxpr) else None
    return level if level is not None and len(level.invars) == len(equation.invars) else None


def scan_arguments(scan: JaxprEqn) -> tuple[int, int]:
    """Return the number of constant arguments of a scan, and of carried ones.

    A scanned or stacked array has one axis more than in the body. Up to jax 0.11 `num_consts` and `num_carry` had these
    numbers.
    """
    body = level_of(scan.params["jaxpr"])
    carried, arguments = (
        sum(_rank(inner) == _rank(outer) for inner, outer in zip(*pair, strict=True))
        for pair in ((body.outvars, scan.outvars), (body.invars, scan.invars))
    )
    return arguments - carried, carried


def _rank(atom: Any) -> int:
    return len(getattr(aval_of(atom), "shape", ()))


def rewrite_jaxprs(value: Any, rewrite: Callable[[Jaxpr], Jaxpr]) -> Any:
    """Rewrite the jaxprs in a parameter of an equation, or a jaxpr itself; return any other value unchanged.

    Args:
        value: the parameter: a jaxpr, closed or not, a container of them, or anything else.
        rewrite: returns the new open jaxpr.
    """
    # `Jaxpr` first: since jax 0.11 the two are one class, and `.jaxpr` of an instance is itself.
    if isinstance(value, Jaxpr):
        return rewrite(value)
    if isinstance(value, ClosedJaxpr):
        return value.replace(jaxpr=rewrite(value.jaxpr))
    if isinstance(value, tuple | list) and any(isinstance(item, ClosedJaxpr | Jaxpr) for item in value):
        return with_items(value, [rewrite_jaxprs(item, rewrite) for item in value])
    return value


def calling(
    function: Callable[..., Any], operands: Sequence[Any], results: Sequence[Any], source: JaxprEqn
) -> JaxprEqn:
    """Return an equation that calls a function.

    Args:
        function: takes and returns arrays.
        operands: its arguments, in the jaxpr of the equation.
        results: variables for its results.
        source: the equation that it replaces.
    """
    avals = [atom.aval for atom in operands]
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals]
    call = jax.make_jaxpr(jax.jit(function))(*specs).jaxpr.eqns[0]
    return call.replace(invars=list(operands), outvars=list(results), source_info=source.source_info)


def with_rewritten_trace(
    step: Callable[[Any, Any], Any], rewrite: Callable[[ClosedJaxpr], ClosedJaxpr]
) -> Callable[[Any, Any], Any]:
    """Return a function that computes the rewritten trace of `step`.

    Args:
        step: `(state, batch) -> (state, outputs)`.
        rewrite: returns the new trace, with the same arguments and results.
    """

    def rewritten_step(state: Any, batch: Any) -> Any:
        closed, result = jax.make_jaxpr(step, return_shape=True)(state, batch)
        flat = jaxpr_as_fun(rewrite(closed))
        return jax.tree.unflatten(jax.tree.structure(result), flat(*jax.tree.leaves((state, batch))))

    return rewritten_step


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
        if equation.primitive.name in _DEBUGGING:
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
    return "jax.debug.breakpoint" if is_breakpoint else _DEBUGGING[equation.primitive.name]
