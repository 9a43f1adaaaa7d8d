"""How the values that the replicas give one variable become one.

Rule: a variable keeps the aggregation that it was made with, and its assignments are aggregated at once
(`assignments.py`). Metrics are made with "sum" and synchronization "on_read": each replica has its own value until the
step ends; then what each added is added up, and what replaces the value unread (`metric.reset_state()`) is added up by
itself. BatchNorm statistics are known by their names and take the mean. Any other variable that would differ is an
error, where TensorFlow silently showed replica 0's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from anytpu.errors import ReplicaError
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.replicas import Shard

Merge = Callable[[Any, Any, Shard | None], Any]
"""`merge(old, new, shard) -> value`: from the value before the step and this replica's new one, the same on every
replica; `shard` is the replica's part of a batch that does not fill all of them."""

_BATCH_STATISTICS = frozenset({"moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev"})
"""The names of the variables of `keras.layers.BatchNormalization` that follow the batches."""


def merge_of(variable: Any, is_overwritten: bool, differs: bool) -> Merge | None:
    """Return how the replicas' new values of a variable become one; None when they are the same already.

    Args:
        variable: a Keras variable that the step writes.
        is_overwritten: the step writes it without having read it.
        differs: the replicas' new values may differ.

    Raises:
        ReplicaError: they differ, and the variable has no aggregation that says what to do.
    """
    if variable.aggregation == "sum" and is_local(variable):
        # Eight replicas that count 4 rows each write the same number, and it is 32 rows all the same.
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
    """Say whether each replica has its own value of a variable until the step ends: that of a metric."""
    return variable.synchronization == "on_read"


def follows_batches(variable: Any) -> bool:
    """Say whether a variable is a statistic of BatchNorm."""
    return variable.name in _BATCH_STATISTICS


def _sum(_: Any, new: Any, __: Any) -> Any:
    return jax.lax.psum(new, REPLICA_AXIS)


def _sum_of_changes(old: Any, new: Any, _: Any) -> Any:
    return old + jax.lax.psum(new - old, REPLICA_AXIS)


def _mean(_: Any, new: Any, __: Any) -> Any:
    return jax.lax.pmean(new, REPLICA_AXIS)


def _mean_over_rows(_: Any, new: Any, shard: Shard | None) -> Any:
    return mean_over_rows(new, shard)


def mean_over_rows(new: Any, shard: Shard | None) -> Any:
    """Return the mean weighted by real rows, so that a replica that got none counts for nothing."""
    if shard is None:
        return jax.lax.pmean(new, REPLICA_AXIS)
    rows = shard.rows.astype(new.dtype)
    return jax.lax.psum(new * rows, REPLICA_AXIS) / jax.lax.psum(rows, REPLICA_AXIS)


def _first(_: Any, new: Any, __: Any) -> Any:
    return first(new)


def first(value: Any) -> Any:
    """Return the first replica's value, on every replica."""
    mine = jnp.where(jax.lax.axis_index(REPLICA_AXIS) == 0, value, jnp.zeros_like(value))
    return jax.lax.psum(mine, REPLICA_AXIS).astype(value.dtype)


def check_has_mean(variable: Any) -> None:
    """Raise where the mean is no value of a variable's dtype."""
    if not jnp.issubdtype(variable.dtype, jnp.inexact):
        raise ReplicaError(
            f"the variable {variable.path!r} holds {variable.dtype}, and its aggregation is the mean, which is not a "
            "whole "
            'number: make it with a floating dtype, or with aggregation="sum" or "only_first_replica"'
        )
