"""Access to the jaxprs inside an equation, and the rewriting of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

_CALLS = ("jaxpr", "call_jaxpr", "call")


def level_of(jaxpr: ClosedJaxpr | Jaxpr) -> Jaxpr:
    """Return the open jaxpr of a closed one, without its constants."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


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
