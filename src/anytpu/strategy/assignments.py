"""Assigning to a variable inside a replica.

Idea: a variable with an aggregation holds one value on all replicas, also in the middle of a step. What the replicas
assign is aggregated when they assign it, and a read afterwards gives the aggregate; `assign_add` and `assign_sub`
aggregate the change. TensorFlow's synchronization AUTO and ON_WRITE do the same.

Rule: a variable with synchronization "on_read" (Keras metrics) keeps each replica's own value until the step ends
(`aggregation.py`). What an optimizer computes is written as it is, since its gradients are reduced already.
"""

from __future__ import annotations

import contextlib
import contextvars
import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import ReplicaError
from anytpu.strategy.aggregation import check_has_mean, first, is_local
from anytpu.strategy.per_replica import is_traced
from anytpu.strategy.replicas import Replica, current_replica

_AS_IT_IS: contextvars.ContextVar[bool] = contextvars.ContextVar("as it is", default=False)


@contextlib.contextmanager
def unaggregated() -> Iterator[None]:
    """Let assignments write values as they are: those that are the same on every replica already."""
    token = _AS_IT_IS.set(True)
    try:
        yield
    finally:
        _AS_IT_IS.reset(token)


def write_back(variable: Any, value: Any) -> None:
    """Write a value that a variable had at the end of an inner scope, in which it was aggregated."""
    with unaggregated():
        variable.assign(value)


def install() -> None:
    """Put the wrappers on the class of Keras variables, once."""
    owner = _keras.variable_class()
    assign = owner.assign
    if _keras.is_wrapped(assign):
        return
    _keras.wrap(owner, "assign", _assigning)
    _keras.wrap(owner, "assign_add", lambda original: _changing(original, assign, operator.add))
    _keras.wrap(owner, "assign_sub", lambda original: _changing(original, assign, operator.sub))


def _assigning(assign: Callable) -> Callable:
    def wrapper(self: Any, value: Any) -> Any:
        replica = _aggregating(self)
        return assign(self, value if replica is None else _aggregate(self, value, replica))

    return wrapper


def _changing(original: Callable, assign: Callable, change: Callable) -> Callable:
    def wrapper(self: Any, value: Any) -> Any:
        replica = _aggregating(self)
        return (
            original(self, value) if replica is None else assign(self, change(self, _aggregate(self, value, replica)))
        )

    return wrapper


def _aggregating(variable: Any) -> Replica | None:
    """Return the replica whose assignments to a variable are aggregated; None where they are written as they are."""
    replica = current_replica()
    if replica is None or replica.axis is None or replica.replicas == 1 or _AS_IT_IS.get():
        return None
    return None if variable.aggregation == "none" or is_local(variable) else replica


def _aggregate(variable: Any, value: Any, replica: Replica) -> Any:
    if isinstance(value, keras.Variable):
        value = value.value
    if _is_plain(value, replica):
        if variable.aggregation == "sum":
            _check_zero(variable, value, replica)
        return value
    value = jnp.asarray(value, variable.dtype)
    if variable.aggregation == "only_first_replica":
        return first(value)
    if variable.aggregation == "sum":
        return replica.sum(value)
    check_has_mean(variable)
    return jax.lax.pmean(value, replica.axis)


def _is_plain(value: Any, replica: Replica) -> bool:
    """Say whether all replicas were given one and the same value, where each could have computed its own."""
    leaves = jax.tree.leaves(value)
    return not any(is_traced(leaf) for leaf in leaves) or any(value is one for one in replica.shared)


def _check_zero(variable: Any, value: Any, replica: Replica) -> None:
    # Zero is zero, however often it is added.
    if not is_traced(value) and not np.any(np.asarray(value)):
        return
    what = "an argument that goes to all replicas" if is_traced(value) else repr(value)
    raise ReplicaError(
        f'the variable {variable.path!r} has aggregation="sum" and was assigned {what}, one value for all '
        f"{replica.replicas} replicas: whether it counts once or {replica.replicas} times is ambiguous. Assign a value "
        "that each replica computes, such as jnp.sum(x), assign the value outside of strategy.run, or make the "
        'variable with aggregation="mean", which takes it once'
    )
