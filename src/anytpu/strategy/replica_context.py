"""`get_replica_context`: the current replica of a step function, and its collectives.

Idea: inside `strategy.run` each replica may compute the sum, the mean or the concatenation of the replicas' values.
`merge_call` calls a function once with the values of all replicas.

Rule: in a scope, and in a function called by `merge_call`, there is no replica: the context is None, as in TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from anytpu._calls import explain_methods
from anytpu.errors import SettingError
from anytpu.strategy.base import get_strategy
from anytpu.strategy.collectives import ReduceOp
from anytpu.strategy.current import CURRENT
from anytpu.strategy.per_replica import PerReplica, is_per_replica, refuse_keys
from anytpu.strategy.replicas import Replica, current_replica, is_merging, outside
from anytpu.strategy.summed import check_not_summed


@explain_methods
@final
class ReplicaContext:
    """The replica that a step function runs as.

    Args:
        replica: the replica.
        strategy: the strategy that runs the step.
    """

    def __init__(self, replica: Replica, strategy: Any) -> None:
        self._replica = replica
        self.strategy = strategy
        """The strategy that runs the step."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that run the step together."""
        return self._replica.replicas

    @property
    def replica_id_in_sync_group(self) -> Any:
        """Index of this replica, from 0, an int32 scalar."""
        return self._replica.index

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Return the sum or the mean of the replicas' values, on every replica. It is differentiable.

        Args:
            reduce_op: `ReduceOp.SUM` or `ReduceOp.MEAN`, or their names in any case.
            value: a tree of arrays.
            options: TensorFlow's `CommunicationOptions`; no effect, because the compiler plans the communication.

        Raises:
            SettingError: the operation is not SUM or MEAN, or a value is a random key.

        Example:
            >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=2))
            >>> def step():
            ...     context = get_replica_context()
            ...     return context.all_reduce("SUM", context.replica_id_in_sync_group)
            >>> strategy.run(step)
            PerReplica:{
              0: 1,
              1: 1
            }
        """
        del options
        op, replica = ReduceOp.of(reduce_op), self._replica
        refuse_keys("all_reduce", value)
        check_not_summed(value, replica)
        divisor = replica.replicas if op is ReduceOp.MEAN else 1
        return jax.tree.map(lambda leaf: replica.sum(leaf) if divisor == 1 else replica.sum(leaf) / divisor, value)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Return the replicas' values, concatenated along an axis, on every replica.

        Args:
            value: a tree of arrays. Only their lengths along the axis may differ between the replicas.
            axis: the axis to concatenate along.
            options: as in `all_reduce`.

        Raises:
            SettingError: a value has no such axis.
        """
        del options
        return jax.tree.map(lambda leaf: self._gather(leaf, axis), value)

    def merge_call(self, merge_fn: Callable, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Call a function once for all replicas, with the values of all of them.

        Args:
            merge_fn: takes the strategy and the arguments, each array as a `PerReplica`; it may use `strategy.reduce`
                and write to variables. Every replica gets its result, or its own part of a `PerReplica`.
            args: its arguments after the strategy; values that are not arrays are passed unchanged.
            kwargs: its keyword arguments; None means none.
        """
        all_args, all_kwargs = jax.tree.map(self._gather_parts, (args, kwargs or {}))
        with outside():
            merged = merge_fn(self.strategy, *all_args, **all_kwargs)
        return jax.tree.map(self._own_part, merged, is_leaf=is_per_replica)

    def _stack(self, leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        return leaf[None] if self._replica.axis is None else jax.lax.all_gather(leaf, self._replica.axis)

    def _gather(self, leaf: Any, axis: int) -> Any:
        leaf = jnp.asarray(leaf)
        if not -leaf.ndim <= axis < leaf.ndim:
            raise SettingError(
                f"all_gather was given axis={axis}, and this replica's value has the shape {leaf.shape}: the axis "
                "counts the axes of one value, from 0; for a number type value[None]"
            )
        return self._concatenated(leaf, axis % leaf.ndim)

    def _concatenated(self, leaf: Any, axis: int) -> Any:
        return jnp.concatenate(self._parts(leaf, axis), axis)

    def _parts(self, leaf: Any, axis: int) -> list[Any]:
        """Return the value of every replica; their lengths along the axis may differ."""
        lengths = self._replica.each(leaf.shape[axis])
        widths = [(0, max(lengths) - size if index == axis else 0) for index, size in enumerate(leaf.shape)]
        stack = self._stack(jnp.pad(leaf, widths) if len(set(lengths)) > 1 else leaf)
        return [jax.lax.slice_in_dim(part, 0, length, axis=axis) for part, length in zip(stack, lengths, strict=True)]

    def _gather_parts(self, leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | np.ndarray):
            return leaf
        leaf = jnp.asarray(leaf)
        parts = self._parts(leaf, 0) if leaf.ndim else list(self._stack(leaf))
        return parts[0] if len(parts) == 1 else PerReplica(parts)

    def _own_part(self, leaf: Any) -> Any:
        return leaf.stacked()[self._replica.index] if isinstance(leaf, PerReplica) else leaf

    def __repr__(self) -> str:
        return f"<ReplicaContext: one of {self._replica.replicas}>"


_DEFAULT = Replica(1, axis=None)


def get_replica_context() -> ReplicaContext | None:
    """Return the current replica; outside every scope a default replica, the only one; None in a scope.

    Example:
        >>> get_replica_context().num_replicas_in_sync
        1
    """
    replica = current_replica()
    if replica is not None:
        return ReplicaContext(replica, get_strategy())
    return ReplicaContext(_DEFAULT, get_strategy()) if CURRENT.get() is None and not is_merging() else None


def in_cross_replica_context() -> bool:
    """Return whether the caller sees all replicas at once: in a scope, or in a function that `merge_call` calls.

    Inside `strategy.run`, and outside every scope, the caller is one replica.

    Example:
        >>> with TPUStrategy(TPUClusterResolver("virtual", cores=2)).scope():
        ...     in_cross_replica_context()
        True
    """
    return get_replica_context() is None


def has_strategy() -> bool:
    """Return whether the caller is in the scope of a `TPUStrategy`, or in a function that it runs.

    Example:
        >>> has_strategy()
        False
    """
    return CURRENT.get() is not None
