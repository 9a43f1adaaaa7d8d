"""The batches of a loop of steps: the source that transfers the arguments of each step to the device.

Rule: a value that is not an array (a string, a bool) is part of the step's code, so steps with different such values
are compiled separately.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, final

import jax

from anytpu.engine.backend import Backend
from anytpu.engine.feeds import BUFFER_BYTES, MAX_STEPS, BatchSource, FeedSource, StepGroup
from anytpu.errors import DataError
from anytpu.strategy.arguments import ArgumentForm, ArrayLeaf, split_arguments
from anytpu.strategy.per_replica import PerReplica


@functools.partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["form"])
@dataclasses.dataclass(frozen=True)
class Batch:
    """The arguments of one step.

    Attributes:
        form: the form of the arguments.
        arrays: the passed values.
    """

    form: ArgumentForm
    arrays: list[Any]


@final
class StepSource(FeedSource):
    """An iteration over the arguments of the steps of a loop.

    Args:
        backend: the backend that runs the steps.
        batches: yields the argument of each step, a tree of `PerReplica` and arrays.
        replicas: number of replicas.
    """

    def __init__(self, backend: Backend, batches: Iterator[Any], replicas: int) -> None:
        self._replicas = replicas
        self._last: Batch | None = None
        self._source = BatchSource(backend, map(self._batch, batches), _capacity, _layouts)

    def take(self, max_steps: int) -> StepGroup | None:
        """Return the next group of at most `max_steps` steps, or None at the end of the batches."""
        return self._source.take(max_steps)

    def close(self) -> None:
        """Do nothing: the iterator belongs to the user, who may continue it."""

    def last_arrays(self) -> list[Any]:
        """Return the arrays of the last batch that was taken, in the form of `split_arguments`."""
        assert self._last is not None
        arrays = self._last.arrays
        return arrays if self._last.form.room is None else [*arrays[:-1], PerReplica.of_stack(arrays[-1])]

    def _batch(self, batch: Any) -> Batch:
        form, arrays = split_arguments((batch,), None, self._replicas)
        self._check_split(form)
        self._last = Batch(form, [array.padded() if isinstance(array, PerReplica) else array for array in arrays])
        return self._last

    def _check_split(self, form: ArgumentForm) -> None:
        """Reject a batch that is not split, so that every replica would run on all of its rows."""
        leaves = [leaf for leaf in form.leaves if isinstance(leaf, ArrayLeaf)]
        if self._replicas > 1 and any(leaf.shape for leaf in leaves) and not any(leaf.is_split for leaf in leaves):
            raise DataError(
                f"the iterator yields whole batches, and each of the {self._replicas} replicas would run on all of "
                "their rows: split them with iterator = iter(strategy.distribute_dataset(dataset))"
            )


def _capacity(batch_bytes: int) -> int:
    return max(1, min(MAX_STEPS, BUFFER_BYTES // max(batch_bytes, 1)))


def _layouts(stack: Batch) -> Batch:
    return Batch(stack.form, stack.form.layouts())
