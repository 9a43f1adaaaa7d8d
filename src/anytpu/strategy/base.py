"""`Strategy`: how a program is spread over replicas."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from typing import Any

from anytpu.strategy import reduction
from anytpu.strategy.per_replica import PerReplica
from anytpu.strategy.replicas import refuse_inside


class Strategy(abc.ABC):
    """How a program is spread over replicas."""

    @property
    @abc.abstractmethod
    def num_replicas_in_sync(self) -> int:
        """The number of replicas that run each step together."""

    @abc.abstractmethod
    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which models, optimizers and metrics are made."""

    @abc.abstractmethod
    def run(self, fn: Callable, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run a function once on each replica."""

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Make one value of one value for each replica.

        Args:
            reduce_op: `ReduceOp.SUM` or `ReduceOp.MEAN`, or their names in any case.
            value: a tree of `PerReplica`, as `run` returns it; a plain value counts as one replica's.
            axis: None reduces over the replicas; 0 also over the first axis of each replica's value, of which each
                replica may have its own length.

        Returns:
            A tree of NumPy arrays.

        Raises:
            SettingError: the operation is not SUM or MEAN, or the values have no such axis.
            ReplicaError: the values have different shapes, and `axis` is None.
            StrategyError: inside a function that `run` runs.

        Example:
            >>> strategy.reduce("MEAN", PerReplica([np.float32(1), np.float32(2)]))
            np.float32(1.5)
        """
        refuse_inside("reduce", "sum with jax.lax.psum(value, 'replica')")
        return reduction.reduce(reduction.ReduceOp.of(reduce_op), value, axis)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenate each replica's value along an axis.

        Args:
            value: a tree of `PerReplica`; a plain value is returned as it is.
            axis: the axis to concatenate along.

        Returns:
            A tree of NumPy arrays, in the order of the replicas.

        Raises:
            SettingError: the values have no such axis.
            ReplicaError: the values differ in another axis.
            StrategyError: inside a function that `run` runs.

        Example:
            >>> strategy.gather(PerReplica([np.zeros((2, 3)), np.ones((2, 3))]), axis=0).shape
            (4, 3)
        """
        refuse_inside("gather", "use jax.lax.all_gather(value, 'replica', tiled=True)")
        return reduction.gather(value, axis)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return the values of a `PerReplica` as a tuple; a plain value as a tuple of one.

        Example:
            >>> strategy.experimental_local_results(3.0)
            (3.0,)
        """
        return value.values if isinstance(value, PerReplica) else (value,)
