"""Access to the jaxprs inside an equation: all of them, the called one, and the container of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

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
