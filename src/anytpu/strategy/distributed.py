"""Data sets whose batches are split over the replicas.

Idea: a batch of rows is split into one part for each replica. If the rows do not fill all replicas, the first ones are
filled first, and the rest are pads: copies of real rows that no result counts (`rows.py`). So every replica runs the
same compiled step.

Rule: the assignment of rows depends only on the batch sizes. Each replica gets ceil(rows / replicas) rows until none
are left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, final

import jax
import numpy as np

from anytpu.errors import DataError, SettingError
from anytpu.strategy.optional_batch import OptionalBatch
from anytpu.strategy.per_replica import PerReplica
from anytpu.strategy.replicas import refuse_inside

_MIN_ROOM = 2
"""Minimum rows of a replica in a batch with pads: a row axis of size 1 is indistinguishable from other such axes."""


@dataclasses.dataclass(frozen=True)
class InputContext:
    """The argument of a function that makes the data set of one host.

    Attributes:
        num_input_pipelines: number of hosts, each with its own data set.
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
        return DistributedIterator(self._strategy, walk, self._is_per_replica)

    def __len__(self) -> int:
        steps = len(self._dataset)
        return -(-steps // self._strategy.num_replicas_in_sync) if self._is_per_replica else steps


@final
class DistributedIterator:
    """One iteration over a `DistributedDataset`."""

    def __init__(self, strategy: Any, batches: Iterator[Any], is_per_replica: bool) -> None:
        self._replicas, self._strict = strategy.num_replicas_in_sync, getattr(strategy, "strict", False)
        self._batches, self._next = batches, self._join if is_per_replica else self._split
        self._room = 0

    def __iter__(self) -> DistributedIterator:
        return self

    def __next__(self) -> Any:
        """Return the next batch, each array as a `PerReplica`.

        Raises:
            StrategyError: inside a function that `strategy.run` runs.
            DataError: an array has no rows, or another number of rows than the others; for a strict strategy, the rows
                are not divisible by the replicas.
        """
        refuse_inside("distribute_dataset", "use the batch that run was given: strategy.run(fn, args=(next(batches),))")
        return self._next()

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

    def _split(self) -> Any:
        leaves, tree = jax.tree.flatten(next(self._batches))
        leaves = [np.asarray(leaf) for leaf in leaves]
        rows = _rows(leaves)
        if self._replicas == 1:
            return tree.unflatten(leaves)
        rows_each = -(-rows // self._replicas)
        counts = tuple(min(rows_each, max(0, rows - rows_each * replica)) for replica in range(self._replicas))
        self._room = max(self._room, rows_each)
        if rows == self._room * self._replicas:
            return tree.unflatten([_reshaped(leaf, self._replicas) for leaf in leaves])
        self._check_strict(rows)
        # index[n, r] is the batch row that becomes row r of replica n: its real rows in order, then row 0 as the pad.
        index = np.zeros((self._replicas, max(self._room, _MIN_ROOM)), np.int64)
        for replica, count in enumerate(counts):
            index[replica, :count] = rows_each * replica + np.arange(count)
        return tree.unflatten([PerReplica.of_stack(leaf[index], counts) for leaf in leaves])

    def _join(self) -> Any:
        """Join one batch for each replica; at the end of the data the last replicas may have no rows."""
        parts = [jax.tree.map(np.asarray, next(self._batches))]
        for _ in range(self._replicas - 1):
            batch = next(self._batches, None)
            if batch is None:
                break
            parts.append(jax.tree.map(np.asarray, batch))
        if self._replicas == 1:
            return parts[0]
        counts = [_rows(jax.tree.leaves(part)) for part in parts] + [0] * (self._replicas - len(parts))
        self._room = max(self._room, *counts)
        if set(counts) == {self._room}:
            return jax.tree.map(lambda *leaves: PerReplica.of_stack(np.stack(leaves)), *parts)
        self._check_strict(sum(counts))
        return jax.tree.map(lambda *leaves: PerReplica.of_stack(self._stacked(leaves), tuple(counts)), *parts)

    def _stacked(self, leaves: tuple[np.ndarray, ...]) -> np.ndarray:
        room = max(self._room, _MIN_ROOM)
        stack = np.empty((self._replicas, room, *leaves[0].shape[1:]), leaves[0].dtype)
        stack[:] = leaves[0][0]
        for replica, leaf in enumerate(leaves):
            stack[replica, : len(leaf)] = leaf
        return stack

    def _check_strict(self, rows: int) -> None:
        if self._strict:
            raise DataError(
                f"a batch of {rows} rows is not divisible by the number of TPU cores in use "
                f"({rows} vs {self._replicas}): make batches of a multiple of {self._replicas} and leave the last one "
                "out, for example with batch(rows, drop_remainder=True), or make the strategy without strict=True"
            )


def _reshaped(leaf: np.ndarray, replicas: int) -> PerReplica:
    # Copy: the data set may reuse the buffer for the next batch.
    return PerReplica.of_stack(np.array(leaf).reshape(replicas, leaf.shape[0] // replicas, *leaf.shape[1:]))


def _rows(leaves: list[np.ndarray]) -> int:
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
