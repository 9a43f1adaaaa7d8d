"""A placeholder primitive in the trace of a step for a batch that does not fill all replicas.

Idea: the gradients summed over the replicas need the losses of all groups of replicas at once. So the trace of one
group contains them as a primitive, and the lockstep computes it.

Rule: the primitive has no lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching

from anytpu.errors import ReplicaError

GRADIENTS = Primitive("summed_value_and_grad")
GRADIENTS.multiple_results = True


@GRADIENTS.def_abstract_eval
def _(*operands: Any, loss: Any, values: int, shape: Any) -> Any:
    return [*loss.out_avals, *operands[:values]]


def _refuse_vmap(*_: Any, **__: Any) -> Any:
    raise ReplicaError(
        "tpu.value_and_grad was called in jax.vmap on a batch that does not fill all replicas: call jax.vmap in the "
        "loss, or leave such a batch out: batch(rows, drop_remainder=True)"
    )


batching.primitive_batchers[GRADIENTS] = _refuse_vmap


def record_gradients(loss_of: Callable, values: list[Any]) -> tuple[Any, list[Any]]:
    """Record the value and the summed gradients of a loss; see `gradients.summed_value_and_grad`."""
    loss, shape = jax.make_jaxpr(loss_of, return_shape=True)(values)
    tree = jax.tree.structure(shape)
    # The operands are the values, then the arrays that the loss captures.
    results = GRADIENTS.bind(*values, *loss.consts, loss=loss, values=len(values), shape=tree)
    return tree.unflatten(results[: tree.num_leaves]), list(results[tree.num_leaves :])
