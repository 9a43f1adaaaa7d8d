"""Taps: return intermediate values of a step by name, beside its outputs.

Idea: a layer's output is deep inside of a step, within differentiated functions and optimizer updates. So the value is
marked where it is computed, with JAX's `checkpoint_name`, which survives differentiation and batching. When the step is
traced, the marked values are collected and returned.

Rule: taps do not change the results of a step. A mark in the body of a loop or in a branch has many values or none, and
is not returned.
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
    """Return a value marked with a name, for `tapped`."""
    return checkpoint_name(value, _MARK + name)


def tapped(step: Callable[[Tree, Tree], tuple[Tree, Tree]]) -> Callable[[Tree, Tree], tuple[Tree, Tree]]:
    """Return a step whose outputs are the pair of the outputs of `step` and the dictionary of its marked values.

    Example:
        >>> step = tapped(lambda state, batch: (state, marked(batch + 1, "more") * 2))
        >>> state, (outputs, values) = step(0.0, jnp.ones(2))
        >>> outputs.tolist(), {name: value.tolist() for name, value in values.items()}
        ([4.0, 4.0], {'more': [2.0, 2.0]})
    """

    def tapped_step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        closed, form = jax.make_jaxpr(step, return_shape=True)(state, batch)
        values: dict[str, Any] = {}
        flat = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves((state, batch)), values)
        new_state, outputs = jax.tree.unflatten(jax.tree.structure(form), flat)
        return new_state, (outputs, values)

    return tapped_step


def _evaluate(function: Jaxpr, constants: Sequence[Any], inputs: Sequence[Any], marks: dict[str, Any]) -> list[Any]:
    """Evaluate a traced function, and store the first value of each mark in `marks`."""
    known: dict[Any, Any] = dict(zip([*function.constvars, *function.invars], [*constants, *inputs], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for equation in function.eqns:
        operands, inner = [read(atom) for atom in equation.invars], _with_marks(equation)
        if inner is not None:
            results = _evaluate(inner.jaxpr, inner.consts, operands, marks)
        else:
            with equation.ctx.manager:
                results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
            results = results if equation.primitive.multiple_results else [results]
        known.update(zip(equation.outvars, results, strict=True))
        if (name := _mark_of(equation)) is not None:
            marks.setdefault(name, results[0])
    return [read(atom) for atom in function.outvars]


def _mark_of(equation: JaxprEqn) -> str | None:
    name = str(equation.params.get("name", "")) if equation.primitive.name == "name" else ""
    return name.removeprefix(_MARK) if name.startswith(_MARK) else None


def _with_marks(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the function that an equation calls exactly once, if it contains marks; else None."""
    if equation.primitive.name not in _CALLS:
        return None
    functions = [param for param in equation.params.values() if isinstance(param, ClosedJaxpr | Jaxpr)]
    if len(functions) != 1:
        return None
    closed = functions[0] if isinstance(functions[0], ClosedJaxpr) else ClosedJaxpr(functions[0], ())
    return closed if _has_marks(closed.jaxpr) else None


def _has_marks(function: Jaxpr) -> bool:
    return any(_mark_of(equation) is not None or _with_marks(equation) is not None for equation in function.eqns)
