"""Taps: values inside of a step that leave it with its outputs, by name.

Idea: a layer's output is deep inside of a step: in a function that is differentiated, in an optimizer's update. So it
is marked where it arises (JAX carries a name for a value through differentiation and batching, for rematerialisation),
and when the step is traced the marked values are looked up and returned.

Rule: a step with taps computes what it computes without. What is marked in the body of a loop or in a branch has many
values or none, and is not returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from anytpu.program.program import Tree

_MARK = "anytpu:"
_CALLS = frozenset(
    [
        *["checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"],
        *["eval_jaxpr", "jit", "pjit", "remat2"],
    ]
)


def marked(value: jax.Array, name: str) -> jax.Array:
    """Return a value under a name by which `tapped` finds it."""
    return checkpoint_name(value, _MARK + name)


def tapped(step: Callable[[Tree, Tree], tuple[Tree, Tree]]) -> Callable[[Tree, Tree], tuple[Tree, Tree]]:
    """Return a step whose outputs are the pair of those of `step` and a dictionary of the values marked in it.

    Example:
        >>> step = tapped(lambda state, batch: (state, marked(batch + 1, "more") * 2))
        >>> state, (outputs, values) = step(0.0, jnp.ones(2))
        >>> outputs.tolist(), {name: value.tolist() for name, value in values.items()}
        ([4.0, 4.0], {'more': [2.0, 2.0]})
    """

    def tapped_step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        closed, form = jax.make_jaxpr(step, return_shape=True)(state, batch)
        found: dict[str, Any] = {}
        flat = _evaluated(closed.jaxpr, closed.consts, jax.tree.leaves((state, batch)), found)
        new_state, outputs = jax.tree.unflatten(jax.tree.structure(form), flat)
        return new_state, (outputs, found)

    return tapped_step


def _evaluated(function: Jaxpr, constants: Sequence[Any], given: Sequence[Any], found: dict[str, Any]) -> list[Any]:
    """Evaluate a traced function, and note the first value of each mark."""
    known: dict[Any, Any] = dict(zip([*function.constvars, *function.invars], [*constants, *given], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for equation in function.eqns:
        operands, inner = [read(one) for one in equation.invars], _with_marks(equation)
        if inner is not None:
            results = _evaluated(inner.jaxpr, inner.consts, operands, found)
        else:
            with equation.ctx.manager:
                results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
            results = results if equation.primitive.multiple_results else [results]
        known.update(zip(equation.outvars, results, strict=True))
        if (name := _mark_of(equation)) is not None:
            found.setdefault(name, results[0])
    return [read(one) for one in function.outvars]


def _mark_of(equation: JaxprEqn) -> str | None:
    name = str(equation.params.get("name", "")) if equation.primitive.name == "name" else ""
    return name.removeprefix(_MARK) if name.startswith(_MARK) else None


def _with_marks(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the function that an equation calls once, if there are marks in it."""
    if equation.primitive.name not in _CALLS:
        return None
    functions = [one for one in equation.params.values() if isinstance(one, ClosedJaxpr | Jaxpr)]
    if len(functions) != 1:
        return None
    closed = functions[0] if isinstance(functions[0], ClosedJaxpr) else ClosedJaxpr(functions[0], ())
    return closed if _has_marks(closed.jaxpr) else None


def _has_marks(function: Jaxpr) -> bool:
    return any(_mark_of(one) is not None or _with_marks(one) is not None for one in function.eqns)
