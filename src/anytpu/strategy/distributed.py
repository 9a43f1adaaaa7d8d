"""Data sets whose batches are split over the replicas.

Idea: a batch of rows is split into one part for each replica. If the rows do not fill all replicas, the first replicas
are filled first. The parts travel in one array, where pads fill up the others; a step never sees them (`uneven/`).

Rule: the assignment of rows depends only on the batch sizes. Each replica gets ceil(rows / replicas) rows until none
are left.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, final

import jax
import numpy as np

from anytpu._calls import explain_methods
from anytpu.errors import DataError, DataExhaustedError, SettingError
from anytpu.strategy.per_replica import PerReplica, is_key
from anytpu.strategy.replicas import refuse_inside


@explain_methods
@dataclasses.dataclass(frozen=True)
class InputContext:
    """The argument of a function that makes the data set of one host.

    Attributes:
        num_input_pipelines: number of hosts, each with its own data set: take every so many batches or files.
        input_pipeline_id: index of this host, from 0.
        num_replicas_in_sync: number of replicas on all hosts.

    Example:
        >>> print(InputContext(num_replicas_in_sync=8).get_per_replica_batch_size(64))
        8
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return the number of rows in one replica's batch.

        Raises:
            SettingError: the replicas do not divide the global batch.
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise SettingError(
                f"the global_batch_size {global_batch_size!r} is not divisible by num_replicas_in_sync, "
                f"{self.num_replicas_in_sync!r}: take a multiple, or strategy.distribute_dataset(dataset), which "
                "splits batches of any size"
            )
        return global_batch_size // self.num_replicas_in_sync

    def __str__(self) -> str:
        return f"InputContext(input pipeline id {self.input_pipeline_id}, total: {self.num_input_pipelines})"


@dataclasses.dataclass(frozen=True)
class ValueContext:
    """The argument of a function that makes the value of one replica.

    Attributes:
        replica_id_in_sync_group: index of the replica, from 0.
        num_replicas_in_sync: number of replicas.
    """

    replica_id_in_sync_group: int
    num_replicas_in_sync: int


@final
class DistributedDataset:
    """A data set whose batches are trees of `PerReplica`, or plain trees for one replica.

    Args:
        strategy: the strategy that runs the replicas.
        dataset: yields trees of arrays with equal first axes; each `iter` starts it anew.
        is_per_replica: True if each batch is for one replica; False if batches are global.

    Raises:
        DataError: `dataset` does not yield batches.
    """

    def __init__(self, strategy: Any, dataset: Any, is_per_replica: bool) -> None:
        if isinstance(dataset, np.ndarray | jax.Array | tuple | dict | str) or not hasattr(dataset, "__iter__"):
            raise DataError(
                f"a data set yields batches, one after the other, and this is {_text(dataset)}: for arrays type "
                "tpu.pipeline.Dataset.from_arrays((x, y)).batch(64)"
            )
        self._strategy, self._dataset, self._is_per_replica = strategy, dataset, is_per_replica

    def __iter__(self) -> DistributedIterator:
        # A data set with columns of strings keeps them on the host: `numbers` iterates over the other columns.
        keeps_strings = callable(getattr(type(self._dataset), "on_host", None))
        walk = self._dataset.numbers() if keeps_strings else iter(self._dataset)
        return DistributedIterator(self._strategy, walk, self._is_per_replica, self._dataset)

    @property
    def cardinality(self) -> int:
        """Number of batches of the data set, as it was given; -1 if it is endless, -2 if the number is not known."""
        if callable(getattr(self._dataset, "cardinality", None)):
            return int(self._dataset.cardinality())
        return len(self._dataset) if hasattr(self._dataset, "__len__") else -2

    def __len__(self) -> int:
        steps = len(self._dataset)
        return -(-steps // self._strategy.num_replicas_in_sync) if self._is_per_replica else steps


@dataclasses.dataclass(frozen=True, slots=True)
class OptionalBatch:
    """A batch, or nothing at the end of the data.

    Attributes:
        batches: a tuple with the batch; () at the end of the data.
    """

    batches: tuple[Any, ...] = ()

    @classmethod
    def following(cls, iterator: Iterator[Any]) -> OptionalBatch:
        """Return the next batch of an iterator, or an empty `OptionalBatch` at its end."""
        try:
            return cls((next(iterator),))
        except StopIteration:
            return cls()

    def has_value(self) -> bool:
        """Return whether there is a batch."""
        return bool(self.batches)

    def get_value(self) -> Any:
        """Return the batch.

        Raises:
            DataExhaustedError: there is no batch.
        """
        if not self.batches:
            raise DataExhaustedError(
                "the given optional does not have a value: the data has ended. Ask optional.has_value() first"
            )
        return self.batches[0]


@final
class DistributedIterator:
    """One iteration over a `DistributedDataset`.

    Args:
        strategy: the strategy that runs the replicas.
        batches: the iteration over the data set.
        is_per_replica: True if each batch is for one replica; False if batches are global.
        dataset: the data set, which may know positions.
    """

    def __init__(self, strategy: Any, batches: Iterator[Any], is_per_replica: bool, dataset: Any = None) -> None:
        self._replicas, self._strict = strategy.num_replicas_in_sync, getattr(strategy, "strict", False)
        self._batches, self._is_per_replica = batches, is_per_replica
        self._dataset = dataset
        # Several hosts: each makes the batches of its own replicas, and knows the number of rows of all.
        self._hosts = strategy.hosts
        is_own = is_per_replica and not self._hosts.is_alone
        self._own = _own_replicas(strategy) if is_own else None
        self._last: Any = None

    def get_state(self) -> dict[str, Any]:
        """Return the position after the last batch, for `set_state` in this process or another.

        Raises:
            DataError: the data set has no positions.
        """
        if self._own is not None:
            raise DataError(
                "the data set of this host, from distribute_datasets_from_function, has a position of its own, and a "
                "checkpoint of several hosts holds one position: pass strategy.distribute_dataset(dataset)"
            )
        if hasattr(self._dataset, "position"):
            return {"position": self._dataset.position()}
        if hasattr(self._batches, "get_state"):
            return {"position": self._batches.get_state()}  # pyright: ignore[reportAttributeAccessIssue]
        raise DataError(
            f"{_text(self._dataset)} has no position to save: pass a tpu.pipeline.Dataset, or an iterable whose "
            "iterator has get_state and set_state"
        )

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to a position that `get_state` returned."""
        if hasattr(self._dataset, "position"):
            self._batches = self._dataset.numbers(state["position"])
        else:
            self._batches.set_state(state["position"])  # pyright: ignore[reportAttributeAccessIssue]

    def __iter__(self) -> DistributedIterator:
        return self

    def __next__(self) -> Any:
        """Return the next batch, each array as a `PerReplica`.

        Raises:
            StrategyError: inside a function that `strategy.run` runs.
            DataError: an array has no rows, or another number of rows than the others. For a strict strategy also if
                the rows are not divisible by the replicas.
        """
        refuse_inside("distribute_dataset", "use the batch that run was given: strategy.run(fn, args=(next(batches),))")
        if self._own is not None:
            return self._next_own(self._own)
        parts = [_arrays(next(self._batches))]
        if self._is_per_replica:
            # At the end of the data the last replicas may have no rows.
            parts += map(_arrays, itertools.islice(self._batches, self._replicas - 1))
            counts = [_rows(part) for part in parts] if self._replicas > 1 else []
            counts += [0] * (self._replicas - len(parts))
        else:
            rows = _rows(parts[0])
            each = -(-rows // self._replicas)
            counts = [min(each, max(0, rows - each * replica)) for replica in range(self._replicas)]
        return parts[0] if self._replicas == 1 else self._split(parts, tuple(counts))

    def _next_own(self, own: tuple[int, ...]) -> Any:
        """Return the next batch, with the values of this host; all hosts come to the end of the data together."""
        # 1. Take one batch for each replica of this host. At the end of the data there are fewer, or none.
        parts = list(map(_arrays, itertools.islice(self._batches, len(own))))
        self._last = parts[0] if parts else self._last
        rows = dict(zip(own, map(_rows, parts), strict=False))
        # 2. Exchange the numbers of rows, so that all hosts see the end of the data in the same step.
        counts = self._hosts.gather(rows, self._replicas)
        if not any(counts):
            raise StopIteration
        if self._last is None:
            raise DataError(
                f"the data set of host {self._hosts.index} has no batch, and those of others have: every host needs at "
                "least one"
            )
        # 3. Put the replicas of this host in arrays of all replicas.
        room = max(counts)
        is_even = min(counts) == room
        if not is_even:
            self._check_strict(sum(counts))

        def stack(like: np.ndarray, *each: np.ndarray) -> PerReplica:
            # Pages of other hosts' replicas are never written, and so take no memory.
            values = np.zeros((self._replicas, room, *like.shape[1:]), like.dtype)
            # Pads are copies of a real row.
            for replica in own:
                values[replica] = like[0]
            for replica, part in zip(own, each, strict=False):
                values[replica, len(part) :] = part[0]
                values[replica, : len(part)] = part
            return PerReplica.of_stack(values, None if is_even else counts, own)

        return jax.tree.map(stack, self._last, *parts)

    def get_next(self) -> Any:
        """Return the next batch, like `next(iterator)`."""
        return next(self)

    def get_next_as_optional(self) -> OptionalBatch:
        """Return the next batch, or an empty `OptionalBatch` at the end of the data, so that a loop can end there.

        Example:
            >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=2))
            >>> batches = iter(strategy.distribute_dataset([np.ones(4)]))
            >>> [batches.get_next_as_optional().has_value() for _ in range(2)]
            [True, False]
        """
        return OptionalBatch.following(self)

    def _split(self, parts: list[Any], counts: tuple[int, ...]) -> Any:
        """Split rows over the replicas, in order; a replica with fewer rows than another gets pads.

        Args:
            parts: trees of arrays with the rows, `(rows, ...)`, which are concatenated.
            counts: number of rows of each replica.
        """
        # Concatenation copies, also one array: the data set may reuse the buffer for the next batch.
        room = max(counts)
        if min(counts) == room:
            shape = (self._replicas, room)
            return jax.tree.map(
                lambda *each: PerReplica.of_stack(np.concatenate(each).reshape(*shape, *each[0].shape[1:])), *parts
            )
        self._check_strict(sum(counts))
        # index[n, r] is the batch row that becomes row r of replica n: its real rows in order, then row 0 as the pad.
        index = np.zeros((self._replicas, room), np.int64)
        for replica, count in enumerate(counts):
            index[replica, :count] = sum(counts[:replica]) + np.arange(count)
        return jax.tree.map(lambda *each: PerReplica.of_stack(np.concatenate(each)[index], counts), *parts)

    def _check_strict(self, rows: int) -> None:
        if self._strict:
            raise DataError(
                f"a batch of {rows} rows is not divisible by the number of TPU cores in use "
                f"({rows} vs {self._replicas}): make batches of a multiple of {self._replicas} and leave the last one "
                "out, for example with batch(rows, drop_remainder=True), or make the strategy without strict=True"
            )


def _own_replicas(strategy: Any) -> tuple[int, ...]:
    cores = strategy.backend.cores
    return tuple(index for index, core in enumerate(cores) if core.host == strategy.hosts.index)


def _arrays(batch: Any) -> Any:
    if any(is_key(leaf) for leaf in jax.tree.leaves(batch)):
        raise DataError(
            "a batch holds typed random keys, which NumPy does not have: yield their numbers, "
            "jax.random.key_data(keys), and make keys of them in the step, jax.random.wrap_key_data(rows)"
        )
    return jax.tree.map(np.asarray, batch)


def _rows(batch: Any) -> int:
    """Return the number of rows of the arrays of a batch."""
    leaves = jax.tree.leaves(batch)
    counts = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
    if len(counts) != 1 or 0 in counts:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves) or "no array"
        raise DataError(
            f"the arrays of a batch must have the same number of rows in front, at least one, and these have the "
            f"shapes {shapes}: batch the data set first, dataset.batch(64)"
        )
    return next(iter(counts))


def _text(dataset: Any) -> str:
    if isinstance(dataset, np.ndarray | jax.Array):
        return f"an array of shape {dataset.shape}"
    return f"a {type(dataset).__name__}"
