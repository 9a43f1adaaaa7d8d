"""Assignment to a variable inside a replica.

Idea: a variable with an aggregation has the same value on all replicas, also in the middle of a step. Assigned values
are aggregated at the assignment, and a later read returns the aggregate. `assign_add` and `assign_sub` aggregate the
change. TensorFlow's synchronization AUTO and ON_WRITE do the same.

Rule: a variable with synchronization "on_read" (Keras metrics) keeps each replica's own value until the step ends
(`aggregation.py`). Optimizers write without aggregation, because their gradients are reduced already.
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

_UNAGGREGATED: contextvars.ContextVar[bool] = contextvars.ContextVar("unaggregated", default=False)


@contextlib.contextmanager
def unaggregated() -> Iterator[None]:
    """Disable aggregation of assignments in a block, for values that are already equal on every replica."""
    token = _UNAGGREGATED.set(True)
    try:
        yield
    finally:
        _UNAGGREGATED.reset(token)


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
        if replica is None:
            return original(self, value)
        return assign(self, change(self, _aggregate(self, value, replica)))

    return wrapper


def _aggregating(variable: Any) -> Replica | None:
    """Return the current replica if assignments to a variable are aggregated in it; otherwise None."""
    replica = current_replica()
    if replica is None or replica.axis is None or replica.replicas == 1 or _UNAGGREGATED.get():
        return None
    return None if variable.aggregation == "none" or is_local(variable) else replica


def _aggregate(variable: Any, value: Any, replica: Replica) -> Any:
    if isinstance(value, keras.Variable):
        value = value.value
    if _is_shared(value, replica):
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


def _is_shared(value: Any, replica: Replica) -> bool:
    """Return whether a value is the same on all replicas: a constant, or an argument that goes to all replicas."""
    leaves = jax.tree.leaves(value)
    return not any(is_traced(leaf) for leaf in leaves) or any(value is argument for argument in replica.shared)


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
