"""Aggregation of the replicas' values of one variable.

Rule: a variable keeps the aggregation that it was made with, and its assignments are aggregated at once
(`assignments.py`). Metrics have aggregation "sum" and synchronization "on_read": each replica has its own value until
the step ends. Then the replicas' changes are summed. If the step overwrites the value without reading it
(`metric.reset_state()`), the new values are summed instead. BatchNorm statistics are recognized by name and averaged.
Any other variable that would differ is an error; TensorFlow silently showed the value of replica 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from anytpu.errors import ReplicaError
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.replicas import ReplicaShard

Merge = Callable[[Any, Any, ReplicaShard | None], Any]
"""`merge(old, new, shard) -> value`: the merged value, equal on every replica. `old` is the value before the step,
`new` this replica's value after it, `shard` the replica's part of a batch that does not fill all replicas."""

_BATCH_STATISTICS = frozenset({"moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev"})
"""Names of the running statistics of `keras.layers.BatchNormalization`."""


def merge_of(variable: Any, is_overwritten: bool, differs: bool) -> Merge | None:
    """Return the function that merges the replicas' new values of a variable; None if they are already equal.

    Args:
        variable: a Keras variable that the step writes.
        is_overwritten: True if the step writes it without reading it first.
        differs: True if the replicas' new values may differ.

    Raises:
        ReplicaError: the values may differ, and the variable has no aggregation.
    """
    if variable.aggregation == "sum" and is_local(variable):
        # Equal values are summed too: eight replicas that each count 4 rows make 32 rows.
        return _sum if is_overwritten else _sum_of_changes
    if not differs:
        return None
    if variable.aggregation == "only_first_replica":
        return _first
    if follows_batches(variable):
        return _mean_over_rows
    if variable.aggregation == "mean":
        check_has_mean(variable)
        return _mean
    raise ReplicaError(
        f"you must specify an aggregation method to update the variable {variable.path!r} in a replica: its new value "
        "differs between the replicas, and after a step every replica must hold the same. Make it with "
        'aggregation="sum", "mean" or "only_first_replica", for example '
        'keras.Variable(0.0, aggregation="sum"), or write a value that is the same on all of them. Where an optimizer '
        "writes it, from gradients of one replica alone, take them with tpu.value_and_grad, or reduce them first: "
        'gradients = tpu.get_replica_context().all_reduce("MEAN", gradients)'
    )


def is_local(variable: Any) -> bool:
    """Return whether each replica has its own value of a variable until the step ends, as a metric has."""
    return variable.synchronization == "on_read"


def follows_batches(variable: Any) -> bool:
    """Return whether a variable is a running statistic of BatchNorm."""
    return variable.name in _BATCH_STATISTICS


def _sum(old: Any, new: Any, shard: ReplicaShard | None) -> Any:
    del old, shard
    return jax.lax.psum(new, REPLICA_AXIS)


def _sum_of_changes(old: Any, new: Any, shard: ReplicaShard | None) -> Any:
    del shard
    return old + jax.lax.psum(new - old, REPLICA_AXIS)


def _mean(old: Any, new: Any, shard: ReplicaShard | None) -> Any:
    del old, shard
    return jax.lax.pmean(new, REPLICA_AXIS)


def _mean_over_rows(old: Any, new: Any, shard: ReplicaShard | None) -> Any:
    del old
    return mean_over_rows(new, shard)


def mean_over_rows(new: Any, shard: ReplicaShard | None) -> Any:
    """Return the mean over the replicas, weighted by real rows; a replica without rows has weight 0."""
    if shard is None:
        return jax.lax.pmean(new, REPLICA_AXIS)
    rows = shard.rows.astype(new.dtype)
    return jax.lax.psum(new * rows, REPLICA_AXIS) / jax.lax.psum(rows, REPLICA_AXIS)


def _first(old: Any, new: Any, shard: ReplicaShard | None) -> Any:
    del old, shard
    return first(new)


def first(value: Any) -> Any:
    """Return the first replica's value on every replica."""
    own_term = jnp.where(jax.lax.axis_index(REPLICA_AXIS) == 0, value, jnp.zeros_like(value))
    return jax.lax.psum(own_term, REPLICA_AXIS).astype(value.dtype)


def check_has_mean(variable: Any) -> None:
    """Raise `ReplicaError` if the dtype of a variable cannot hold a mean."""
    if not jnp.issubdtype(variable.dtype, jnp.inexact):
        raise ReplicaError(
            f"the variable {variable.path!r} holds {variable.dtype}, and its aggregation is the mean, which is not an "
            'integer: make it with a floating dtype, or with aggregation="sum" or "only_first_replica"'
        )
