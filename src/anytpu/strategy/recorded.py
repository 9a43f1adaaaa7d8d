"""Placeholder primitives in the trace of a step for a batch with pads.

Idea: a step on a batch with pads is traced to a jaxpr first, and computed by a plan (`padded/`). The row mask and the
gradients summed over the replicas depend on the plan. So the jaxpr contains them as primitives of this module.

Rule: these primitives have no lowering. The plan replaces each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching

_ROW_MASK = Primitive("row_mask")
_GRADIENTS = Primitive("summed_value_and_grad")
_GRADIENTS.multiple_results = True


@_ROW_MASK.def_abstract_eval
def _(rows: Any, *, axis: int) -> Any:
    return ShapedArray((rows.shape[axis],), bool)


def _mask_in_vmap(operands: Any, axes: Any, *, axis: int) -> Any:
    """Batching rule: the mask is the same for all lanes of a `vmap` in the step."""
    (rows,), (mapped,) = operands, axes
    return _ROW_MASK.bind(rows, axis=axis if axis < mapped else axis + 1), None


batching.primitive_batchers[_ROW_MASK] = _mask_in_vmap


@_GRADIENTS.def_abstract_eval
def _(*operands: Any, loss: Any, values: int, shape: Any) -> Any:
    return [*loss.out_avals, *operands[:values]]


def record_mask(rows: Any) -> Any:
    """Record the mask of an array's first axis, bool `(rows,)`; all True if this axis is not an axis of batch rows."""
    return _ROW_MASK.bind(jax.lax.stop_gradient(rows), axis=0)


GATHERED = "gathered_real_rows"
"""Name in a jaxpr of the function that gathers the real rows of all replicas."""


def record_gather(rows: Any, stack: Callable, counts: tuple[int, ...]) -> Any:
    """Return the real rows of all replicas, concatenated.

    Args:
        rows: this replica's rows, including pads.
        stack: gathers the value of each replica, `(replicas, ...)`.
        counts: number of real rows of each replica.
    """

    def gathered_real_rows(rows: Any) -> Any:
        # A trace for fewer rows than the largest count only needs the shape, so pad the rows.
        missing = max(0, *counts) - rows.shape[0]
        if missing > 0:
            rows = jnp.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1))
        return jnp.concatenate([part[:count] for part, count in zip(stack(rows), counts, strict=True)])

    return jax.jit(gathered_real_rows)(rows)


def record_gradients(loss_of: Callable, values: list[Any]) -> tuple[Any, list[Any]]:
    """Record the value and the summed gradients of a loss; see `gradients.summed_value_and_grad`."""
    loss, shape = jax.make_jaxpr(loss_of, return_shape=True)(values)
    tree = jax.tree.structure(shape)
    # The operands are the values, then the arrays that the loss captures.
    results = _GRADIENTS.bind(*values, *loss.consts, loss=loss, values=len(values), shape=tree)
    return tree.unflatten(results[: tree.num_leaves]), list(results[tree.num_leaves :])
