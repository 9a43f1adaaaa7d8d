"""`Strategy`: the interface of all strategies, and `DefaultStrategy`, which runs one replica without a TPU system."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from typing import Any, final

from anytpu._calls import explain_methods
from anytpu.engine.hosts import ONE_HOST, Hosts
from anytpu.errors import DataExhaustedError, SettingError
from anytpu.strategy import collectives
from anytpu.strategy.current import CURRENT
from anytpu.strategy.distributed import DistributedDataset, InputContext, ValueContext
from anytpu.strategy.looped import check_loop, exhausted_message
from anytpu.strategy.per_replica import PerReplica
from anytpu.strategy.replicas import Replica, inside, refuse_inside

_ENDED = object()


@explain_methods
class Strategy(abc.ABC):
    """Runs a program on replicas."""

    @property
    @abc.abstractmethod
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that run each step together."""

    @property
    def hosts(self) -> Hosts:
        """The hosts of the replicas."""
        return ONE_HOST

    @abc.abstractmethod
    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which models, optimizers and metrics are made."""

    @abc.abstractmethod
    def run(self, fn: Callable, args: tuple = (), kwargs: dict | None = None, options: Any = None) -> Any:
        """Run a function once on each replica."""

    @abc.abstractmethod
    def run_steps(self, fn: Callable, iterator: Any, steps: int, state: Any = None) -> Any:
        """Run a function once on each replica for each of `steps` batches."""

    def distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Return a data set whose batches are split over the replicas.

        Args:
            dataset: yields batches of the GLOBAL size: arrays, or tuples and dictionaries of them.
            options: TensorFlow's `InputOptions`; no effect, because they say where and when batches are transferred.

        Returns:
            An iterable of trees of `PerReplica`. If the rows do not fill all replicas, the first replicas are filled
            first. `compute_average_loss` and metrics ignore the pads of the others.

        Raises:
            DataError: `dataset` yields no batches; (on iterating) a leaf of a batch has no rows.

        Example:
            >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=2))
            >>> next(iter(strategy.distribute_dataset([np.arange(6)])))
            PerReplica:{
              0: [0 1 2],
              1: [3 4 5]
            }
        """
        del options
        return DistributedDataset(self, dataset, is_per_replica=False)

    def distribute_datasets_from_function(self, dataset_fn: Callable, options: Any = None) -> Any:
        """Return a data set of per-replica batches, from a function that makes the data set.

        Args:
            dataset_fn: takes an `InputContext` and returns a data set that yields batches of the PER-REPLICA size. It
                is called once on each host. A step takes one batch for each replica of this host.
            options: as in `distribute_dataset`.

        Raises:
            SettingError: the options ask for a data set for each replica.

        Example:
            >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=2))
            >>> made = strategy.distribute_datasets_from_function(lambda context: [np.zeros(3), np.ones(3)])
            >>> next(iter(made))
            PerReplica:{
              0: [0. 0. 0.],
              1: [1. 1. 1.]
            }
        """
        _check_options(options)
        hosts = self.hosts
        dataset = dataset_fn(InputContext(hosts.count, hosts.index, self.num_replicas_in_sync))
        return DistributedDataset(self, dataset, is_per_replica=True)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Alias of `distribute_dataset`, under its first TensorFlow name."""
        return self.distribute_dataset(dataset, options)

    def experimental_distribute_datasets_from_function(self, dataset_fn: Callable, options: Any = None) -> Any:
        """Alias of `distribute_datasets_from_function`, under its first TensorFlow name."""
        return self.distribute_datasets_from_function(dataset_fn, options)

    def experimental_distribute_values_from_function(self, value_fn: Callable) -> Any:
        """Return a `PerReplica` of the results of a function, called for each replica; a plain value for one replica.

        Args:
            value_fn: takes a `ValueContext` and returns an array or a number.

        Example:
            >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=2))
            >>> strategy.experimental_distribute_values_from_function(lambda it: it.replica_id_in_sync_group)
            PerReplica:{
              0: 0,
              1: 1
            }
        """
        replicas = self.num_replicas_in_sync
        values = [value_fn(ValueContext(replica, replicas)) for replica in range(replicas)]
        return values[0] if replicas == 1 else PerReplica(values)

    def reduce(self, reduce_op: Any, value: Any, axis: int | tuple[int, ...] | None = None) -> Any:
        """Reduce the replicas' values to one value.

        Args:
            reduce_op: `ReduceOp.SUM` or `ReduceOp.MEAN`, or their names in any case.
            value: a tree of `PerReplica`, as `run` returns it. A plain value is the value of every replica. Its mean is
                the value itself. Its sum over the replicas is rejected, since it is ambiguous: once, or once a replica.
            axis: None reduces over the replicas; 0 also over the first axis of each replica's value. The length of this
                axis may differ between replicas. A tuple such as (0, 1) reduces over these axes.

        Returns:
            A tree of NumPy arrays.

        Raises:
            SettingError: the operation is not SUM or MEAN, the values have no such axis, or they are random keys.
            ReplicaError: the values have different shapes, or SUM of a plain value other than 0 on more than one
                replica, and `axis` is None.
            StrategyError: inside a function that `run` runs.

        Example:
            >>> strategy.reduce("MEAN", PerReplica([np.float32(1), np.float32(2)]))
            np.float32(1.5)
        """
        refuse_inside("reduce", "sum with jax.lax.psum(value, 'replica')")
        return collectives.reduce(collectives.ReduceOp.of(reduce_op), value, axis, self.num_replicas_in_sync)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenate each replica's value along an axis.

        Args:
            value: a tree of `PerReplica`; a plain value is returned as it is.
            axis: the axis to concatenate along.

        Returns:
            A tree of NumPy arrays, in the order of the replicas; random keys are JAX arrays.

        Raises:
            SettingError: the values have no such axis.
            ReplicaError: the values differ in another axis.
            StrategyError: inside a function that `run` runs.

        Example:
            >>> strategy.gather(PerReplica([np.zeros((2, 3)), np.ones((2, 3))]), axis=0).shape
            (4, 3)
        """
        refuse_inside("gather", "use jax.lax.all_gather(value, 'replica', tiled=True)")
        return collectives.gather(value, axis)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return the values of a `PerReplica` as a tuple; a plain value as a tuple of one.

        Example:
            >>> strategy.experimental_local_results(3.0)
            (3.0,)
        """
        return value.values if isinstance(value, PerReplica) else (value,)

    def variable_sharding(self, name: str, shape: tuple[int, ...], is_table: bool = False) -> Any:
        """Return the JAX sharding with which a variable is made in its shards; None if it is made whole.

        Args:
            name: path of the variable.
            shape: its shape.
            is_table: whether it is an embedding table or a slot of one, whose rows are split.
        """
        del name, shape, is_table


@explain_methods
@final
class DefaultStrategy(Strategy):
    """One replica in this process; `get_strategy` returns it when no other strategy is in scope."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas: 1."""
        return 1

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that changes nothing."""
        return contextlib.nullcontext(self)

    def run(self, fn: Callable, args: tuple = (), kwargs: dict | None = None, options: Any = None) -> Any:
        """Call the function; it is not compiled."""
        del options
        refuse_inside("run", "call the function itself")
        with inside(Replica(1, axis=None)):
            return fn(*args, **(kwargs or {}))

    def run_steps(self, fn: Callable, iterator: Any, steps: int, state: Any = None) -> Any:
        """Call the function on one batch after the other; it is not compiled."""
        check_loop(fn, iterator, steps)
        outputs = None
        for step in range(steps):
            batch = next(iterator, _ENDED)
            if batch is _ENDED:
                raise DataExhaustedError(exhausted_message(step, steps, state is not None))
            if state is None:
                outputs = self.run(fn, (batch,))
            else:
                state, outputs = self.run(fn, (state, batch))
        return outputs if state is None else (state, outputs)

    def distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Return the data set itself."""
        del options
        return dataset

    def distribute_datasets_from_function(self, dataset_fn: Callable, options: Any = None) -> Any:
        """Return the data set that the function makes."""
        _check_options(options)
        return dataset_fn(InputContext())

    def __repr__(self) -> str:
        return "<DefaultStrategy: one replica, on the default device of JAX>"


def _check_options(options: Any) -> None:
    """Reject the one of TensorFlow's `InputOptions` that changes which rows a replica gets."""
    mode = getattr(options, "experimental_replication_mode", None)
    if getattr(mode, "name", mode) == "PER_REPLICA":
        raise SettingError(
            "options ask for experimental_replication_mode=PER_REPLICA, a data set for each replica, and dataset_fn is "
            "called once on each host: leave the mode out, and let dataset_fn return batches of one replica's size, "
            "of which each replica takes its own"
        )


_DEFAULT = DefaultStrategy()


def get_strategy() -> Strategy:
    """Return the strategy of the surrounding scope or step, or the default strategy with one replica in this process.

    Example:
        >>> get_strategy().num_replicas_in_sync
        1
    """
    return CURRENT.get() or _DEFAULT
