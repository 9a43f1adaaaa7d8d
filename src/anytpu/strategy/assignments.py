"""Assignments to a variable inside a replica, and the aggregation of the replicas' values.

Idea: a variable with an aggregation has the same value on all replicas, also in the middle of a step. Assigned values
are aggregated at the assignment, and a later read returns the aggregate. `assign_add` and `assign_sub` aggregate the
change. TensorFlow's synchronization AUTO and ON_WRITE do the same.

A variable with synchronization "on_read" (Keras metrics) has one value per replica until the step ends. Then the
replicas' changes are summed. If the step overwrites the value without reading it (`metric.reset_state()`), the new
values are summed instead. Statistics of BatchNorm are recognized by name and averaged.

Rule: after a step every replica holds the same values. Any other variable that would differ is an error; TensorFlow
silently returned the value of replica 0. Optimizers write without aggregation, because their gradients are summed.
"""

from __future__ import annotations

import contextlib
import contextvars
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from anytpu import _keras
from anytpu._contexts import value_within
from anytpu.errors import ReplicaError
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.per_replica import is_traced
from anytpu.strategy.replicas import HOLDS_SUM, Replica, ReplicaShard, current_replica
from anytpu.strategy.summed import SummedGradient

Merge = Callable[[Any, Any, ReplicaShard | None], Any]
"""`merge(old, new, shard) -> value`: the merged value, equal on every replica. `old` is the value before the step,
`new` this replica's value after it, `shard` the replica's part of a batch that does not fill all replicas."""

_BATCH_STATISTICS = frozenset({"moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev"})
"""Names of the running statistics of `keras.layers.BatchNormalization`."""

_UNAGGREGATED: contextvars.ContextVar[bool] = contextvars.ContextVar("unaggregated", default=False)


def merge_of(variable: Any, is_overwritten: bool, differs: bool) -> Merge | None:
    """Return the function that merges the replicas' new values of a variable; None if they are already equal.

    Args:
        variable: a Keras variable that the step writes.
        is_overwritten: True if the step writes it without reading it first.
        differs: True if the replicas' new values may differ.

    Raises:
        ReplicaError: the values may differ, and the variable has no aggregation.
    """
    if variable.aggregation == "sum" and _is_local(variable):
        # Equal values are summed too: eight replicas that each count 4 rows make 32 rows.
        if is_overwritten:
            return lambda old, new, shard: jax.lax.psum(new, REPLICA_AXIS)
        return lambda old, new, shard: old + jax.lax.psum(new - old, REPLICA_AXIS)
    if not differs:
        return None
    if variable.aggregation == "only_first_replica":
        return lambda old, new, shard: _first(new)
    if variable.name in _BATCH_STATISTICS:
        return lambda old, new, shard: mean_over_rows(new, shard)
    if variable.aggregation == "mean":
        _check_has_mean(variable)
        return lambda old, new, shard: jax.lax.pmean(new, REPLICA_AXIS)
    raise ReplicaError(
        f"you must specify an aggregation method to update the variable {variable.path!r} in a replica: its new value "
        "differs between the replicas, and after a step every replica must hold the same. Make it with "
        'aggregation="sum", "mean" or "only_first_replica", for example '
        'keras.Variable(0.0, aggregation="sum"), or write a value that is the same on all of them. Where an optimizer '
        "writes it, from gradients of one replica alone, take them with tpu.value_and_grad, or reduce them first: "
        'gradients = tpu.get_replica_context().all_reduce("MEAN", gradients)'
    )


def mean_over_rows(new: Any, shard: ReplicaShard | None) -> Any:
    """Return the mean over the replicas, weighted by real rows; a replica without rows has weight 0."""
    if shard is None:
        return jax.lax.pmean(new, REPLICA_AXIS)
    # The statistics of no rows are NaN.
    share = new * (shard.rows / sum(shard.counts)) if shard.rows else jnp.zeros_like(new)
    return jax.lax.psum(share, REPLICA_AXIS)


def unaggregated() -> contextlib.AbstractContextManager[Any]:
    """Disable aggregation of assignments in a block, for values that are already equal on every replica."""
    return value_within(_UNAGGREGATED, True)


def write_back(variable: Any, value: Any) -> None:
    """Write a variable's value at the end of an inner scope, where it was aggregated already."""
    with unaggregated():
        variable.assign(value)


def install() -> None:
    """Wrap the assignment methods of Keras variables, once."""
    owner = _keras.variable_class()
    assign = owner.assign
    if _keras.is_wrapped(assign):
        return
    _keras.wrap(owner, "assign", _wrap_assign)
    _keras.wrap(owner, "assign_add", lambda original: _wrap_change(original, assign, operator.add))
    _keras.wrap(owner, "assign_sub", lambda original: _wrap_change(original, assign, operator.sub))


def _wrap_assign(assign: Callable) -> Callable:
    def wrapper(self: Any, value: Any) -> Any:
        if current_replica() is None:
            return assign(self, value)
        if (summed := _held_sum(self, value)) is not None:
            return assign(self, summed)
        replica = _aggregating_replica(self)
        return assign(self, value if replica is None else _aggregate(self, value, replica))

    return wrapper


def _wrap_change(original: Callable, assign: Callable, change: Callable) -> Callable:
    def wrapper(self: Any, value: Any) -> Any:
        if (summed := _held_sum(self, value)) is not None:
            return assign(self, change(self.value, summed))
        replica = _aggregating_replica(self)
        if replica is None:
            return original(self, value)
        # Keras's own method calls the wrapped `assign`, which would aggregate the whole value once more.
        return assign(self, change(self, _aggregate(self, value, replica)))

    return wrapper


def _held_sum(variable: Any, value: Any) -> Any | None:
    """Return a gradient that is summed over the replicas, and note that the variable holds it; None for other values.

    A value that is made of such a gradient is noted too, but is assigned like any other.
    """
    replica = current_replica()
    if replica is None or _UNAGGREGATED.get():
        return None
    if isinstance(value, SummedGradient) or replica.unmarked:
        vars(variable)[HOLDS_SUM] = True
    return value.array if isinstance(value, SummedGradient) else None


def _aggregating_replica(variable: Any) -> Replica | None:
    """Return the current replica if assignments to a variable are aggregated in it; otherwise None."""
    replica = current_replica()
    if replica is None or replica.axis is None or replica.replicas == 1 or _UNAGGREGATED.get():
        return None
    return None if variable.aggregation == "none" or _is_local(variable) else replica


def _is_local(variable: Any) -> bool:
    """Return whether each replica has its own value of a variable until the step ends, as a metric has."""
    return variable.synchronization == "on_read"


def _aggregate(variable: Any, value: Any, replica: Replica) -> Any:
    if isinstance(value, keras.Variable):
        value = value.value
    if _is_shared(value, replica):
        if variable.aggregation == "sum":
            _check_zero(variable, value, replica)
        return value
    value = jnp.asarray(value, variable.dtype)
    if variable.aggregation == "only_first_replica":
        return _first(value)
    if variable.aggregation == "sum":
        return replica.sum(value)
    _check_has_mean(variable)
    return jax.lax.pmean(value, replica.axis)


def _first(value: Any) -> Any:
    """Return the first replica's value on every replica."""
    own_term = jnp.where(jax.lax.axis_index(REPLICA_AXIS) == 0, value, jnp.zeros_like(value))
    return jax.lax.psum(own_term, REPLICA_AXIS).astype(value.dtype)


def _is_shared(value: Any, replica: Replica) -> bool:
    """Return whether a value is the same on all replicas: a constant, or an argument that goes to all replicas."""
    leaves = jax.tree.leaves(value)
    if replica.shard is not None and isinstance(value, int | float):
        return len(set(replica.each(value))) == 1
    return not any(is_traced(leaf) for leaf in leaves) or any(value is argument for argument in replica.shared)


def _check_has_mean(variable: Any) -> None:
    if not jnp.issubdtype(variable.dtype, jnp.inexact):
        raise ReplicaError(
            f"the variable {variable.path!r} holds {variable.dtype}, and its aggregation is the mean, which is not an "
            'integer: make it with a floating dtype, or with aggregation="sum" or "only_first_replica"'
        )


def _check_zero(variable: Any, value: Any, replica: Replica) -> None:
    # Zero is unambiguous: any multiple of it is zero.
    if not is_traced(value) and not np.any(np.asarray(value)):
        return
    what = "an argument that goes to all replicas" if is_traced(value) else repr(value)
    raise ReplicaError(
        f'the variable {variable.path!r} has aggregation="sum" and was assigned {what}, one value for all '
        f"{replica.replicas} replicas: whether it counts once or {replica.replicas} times is ambiguous. Assign a value "
        "that each replica computes, such as jnp.sum(x), assign the value outside of strategy.run, or make the "
        'variable with aggregation="mean", which takes it once'
    )
