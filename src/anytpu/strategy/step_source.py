"""The batches of a loop of steps: the arguments of one step after the other, on their way to the device.

Rule: what is no array (a string, a bool) is part of the step's code, so steps whose arguments differ in it are compiled
apart.
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
from anytpu.strategy.arguments import Form, Travels, parted
from anytpu.strategy.per_replica import PerReplica


@functools.partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["form"])
@dataclasses.dataclass(frozen=True)
class Batch:
    """The arguments of one step.

    Attributes:
        form: everything about them but the values that travel.
        arrays: what travels.
    """

    form: Form
    arrays: list[Any]


@final
class StepSource(FeedSource):
    """A walk over the arguments of the steps of a loop.

    Args:
        backend: where they go.
        batches: yields the one argument of each step, a tree of `PerReplica` and arrays.
        replicas: how many replicas there are.
    """

    def __init__(self, backend: Backend, batches: Iterator[Any], replicas: int) -> None:
        self._replicas = replicas
        self._last: Batch | None = None
        self._source = BatchSource(backend, map(self._batch, batches), _capacity, _layouts)

    def take(self, max_steps: int) -> StepGroup | None:
        """Return the next group."""
        return self._source.take(max_steps)

    def close(self) -> None:
        """Leave the iterator as it is: it is the user's, who may go on with it."""

    def last_arrays(self) -> list[Any]:
        """Return the arrays of the last batch that was taken, as `parted` returns them."""
        assert self._last is not None
        arrays = self._last.arrays
        return arrays if self._last.form.room is None else [*arrays[:-1], PerReplica.of_stack(arrays[-1])]

    def _batch(self, batch: Any) -> Batch:
        form, arrays = parted((batch,), None, self._replicas)
        self._check_split(form)
        self._last = Batch(form, [one.padded() if isinstance(one, PerReplica) else one for one in arrays])
        return self._last

    def _check_split(self, form: Form) -> None:
        """Refuse a batch that every replica would train on whole."""
        leaves = [leaf for leaf in form.leaves if isinstance(leaf, Travels)]
        if self._replicas > 1 and any(leaf.shape for leaf in leaves) and not any(leaf.is_split for leaf in leaves):
            raise DataError(
                f"the iterator yields whole batches, and each of the {self._replicas} replicas would run on all of "
                "their rows: split them with iterator = iter(strategy.distribute_dataset(dataset))"
            )


def _capacity(batch_bytes: int) -> int:
    return max(1, min(MAX_STEPS, BUFFER_BYTES // max(batch_bytes, 1)))


def _layouts(stack: Batch) -> Batch:
    return Batch(stack.form, stack.form.layouts())
