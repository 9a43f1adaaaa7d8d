"""Placeholder primitives in the trace of a step for a batch that does not fill all replicas.

Idea: the gradients summed over the replicas, and the rows of all of them, need the values of all groups of replicas at
once. So the trace of one group contains them as primitives of this module, and the lockstep computes them.

Rule: these primitives have no lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive

GRADIENTS = Primitive("summed_value_and_grad")
GRADIENTS.multiple_results = True

GATHER = Primitive("gathered_rows")


@GRADIENTS.def_abstract_eval
def _(*operands: Any, loss: Any, values: int, shape: Any) -> Any:
    return [*loss.out_avals, *operands[:values]]


@GATHER.def_abstract_eval
def _(array: Any, *, lengths: tuple[int, ...], axis: int) -> Any:
    shape = (*array.shape[:axis], sum(lengths), *array.shape[axis + 1 :])
    return ShapedArray(shape, array.dtype)


def record_gradients(loss_of: Callable, values: list[Any]) -> tuple[Any, list[Any]]:
    """Record the value and the summed gradients of a loss; see `gradients.summed_value_and_grad`."""
    loss, shape = jax.make_jaxpr(loss_of, return_shape=True)(values)
    tree = jax.tree.structure(shape)
    # The operands are the values, then the arrays that the loss captures.
    results = GRADIENTS.bind(*values, *loss.consts, loss=loss, values=len(values), shape=tree)
    return tree.unflatten(results[: tree.num_leaves]), list(results[tree.num_leaves :])


def record_gather(array: Any, lengths: tuple[int, ...], axis: int) -> Any:
    """Return the arrays of all replicas, concatenated.

    Args:
        array: this replica's array.
        lengths: length of each replica's array along the axis.
        axis: the axis, not negative.
    """
    return GATHER.bind(array, lengths=lengths, axis=axis)
