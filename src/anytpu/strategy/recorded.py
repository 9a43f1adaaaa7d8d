"""What a step asks for while it is traced for a batch with pads: operations that the plan computes later.

Idea: a step on a batch with pads is traced to a jaxpr first, and computed by a plan (`padded/`). The mask of the rows
and gradients that are summed over the replicas depend on the plan, so they stand in the jaxpr as primitives of ours.

Rule: these primitives have no lowering. A plan replaces each of them.
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
    """Return the mask, which is the same for all lanes of a `vmap` in the step."""
    (rows,), (mapped,) = operands, axes
    return _ROW_MASK.bind(rows, axis=axis if axis < mapped else axis + 1), None


batching.primitive_batchers[_ROW_MASK] = _mask_in_vmap


@_GRADIENTS.def_abstract_eval
def _(*operands: Any, loss: Any, values: int, shape: Any) -> Any:
    return [*loss.out_avals, *operands[:values]]


def record_mask(rows: Any) -> Any:
    """Record the mask of an array's first axis, bool `(rows,)`: True everywhere where that does not run over rows."""
    return _ROW_MASK.bind(jax.lax.stop_gradient(rows), axis=0)


GATHERED = "gathered_real_rows"
"""The name of the function that gathers the real rows of all replicas, in a jaxpr."""


def record_gather(rows: Any, stack: Callable, counts: tuple[int, ...]) -> Any:
    """Return the real rows of all replicas, one after the other.

    Args:
        rows: this replica's, with pads.
        stack: gathers a value of each replica, `(replicas, ...)`.
        counts: the number of real rows of each replica.
    """

    def gathered_real_rows(rows: Any) -> Any:
        # A trace for fewer rows than there are needs the shape alone.
        missing = max(0, *counts) - rows.shape[0]
        if missing > 0:
            rows = jnp.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1))
        return jnp.concatenate([part[:count] for part, count in zip(stack(rows), counts, strict=True)])

    return jax.jit(gathered_real_rows)(rows)


def record_gradients(loss_of: Callable, values: list[Any]) -> tuple[Any, list[Any]]:
    """Record the value and the summed gradients of a loss; see `gradients.summed_value_and_grad`."""
    loss, shape = jax.make_jaxpr(loss_of, return_shape=True)(values)
    tree = jax.tree.structure(shape)
    # What the loss captures goes in behind the values.
    made = _GRADIENTS.bind(*values, *loss.consts, loss=loss, values=len(values), shape=tree)
    return tree.unflatten(made[: tree.num_leaves]), list(made[tree.num_leaves :])
