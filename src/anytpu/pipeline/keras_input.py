"""How Keras's `fit`, `evaluate` and `predict` take a `Dataset`.

Idea: Keras chooses an adapter by the type of x. For ours it gets this one, which walks over the batches of numbers, so
that a length is known where there is one, strings stay on the host, and nothing is read ahead twice.

Rule: the adapter decides nothing about a strategy; plain Keras and the compiled loop walk over the same batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from anytpu import _keras
from anytpu.errors import DataError, SettingError

Tree = Any


class Batches(Protocol):
    """What the adapter needs of a `Dataset`."""

    @property
    def is_endless(self) -> bool:
        """True when a walk never ends."""
        ...

    @property
    def is_batched(self) -> bool:
        """False when its elements are single rows."""
        ...

    @property
    def left(self) -> int | None:
        """How many batches the next walk gives, if that is known."""
        ...

    def numbers(self) -> Iterator[Tree]:
        """Walk over the batches, without their strings."""
        ...


def install(dataset_class: type) -> None:
    """Let Keras take data sets of this class, once."""
    _keras.wrap(_keras.data_adapters_module(), "get_data_adapter", functools.partial(_choosing, dataset_class))


def _choosing(dataset_class: type, original: Callable) -> Callable:
    def get_data_adapter(x: Any, y: Any = None, sample_weight: Any = None, **others: Any) -> Any:
        if not isinstance(x, dataset_class):
            return original(x, y, sample_weight, **others)
        for name, given in (("y", y), ("sample_weight", sample_weight)):
            if given is not None:
                raise DataError(
                    f"{name} must be None when x is a Dataset: its batches are x, (x, y) or (x, y, sample_weight). Put "
                    f"it in, such as Dataset.from_arrays((x, y)), or with map"
                )
        return DatasetAdapter(x, others.get("class_weight"), others.get("steps_per_epoch"))  # pyright: ignore[reportArgumentType]

    return get_data_adapter


class DatasetAdapter:
    """What Keras walks over for a `Dataset`.

    Args:
        dataset: the data set.
        class_weight: a weight for each class, or None.
        steps: the steps of an epoch; None is as many as there are batches.

    Raises:
        SettingError: the data set has no end and `steps` is None.
        DataError: its elements are rows, not batches.
    """

    batch_size = has_partial_batch = partial_batch_size = None

    def __init__(self, dataset: Batches, class_weight: dict[int, float] | None, steps: int | None) -> None:
        if dataset.is_endless and steps is None:
            raise SettingError(
                f"{dataset!r} has no end: pass steps_per_epoch (for validation data validation_steps; to evaluate and "
                "predict, steps), or leave repeat() out"
            )
        if not dataset.is_batched:
            raise DataError(f"{dataset!r} gives single rows, and Keras takes batches: {dataset!r}.batch(32)")
        self._dataset = dataset
        self._class_weight = class_weight

    @property
    def num_batches(self) -> int | None:
        """How many batches an epoch has, or None when that is not known."""
        return self._dataset.left

    def get_jax_iterator(self) -> Iterator[Tree]:
        """Walk over an epoch."""
        for batch in self._dataset.numbers():
            yield self._weighted(_as_tuple(batch))

    get_numpy_iterator = get_jax_iterator

    def on_epoch_begin(self) -> None:
        """Do nothing."""

    def on_epoch_end(self) -> None:
        """Do nothing: a walk that nobody holds any more ends its threads itself."""

    def _weighted(self, batch: Tree) -> Tree:
        if self._class_weight is None or not isinstance(batch, tuple) or len(batch) == 1:
            return batch
        if len(batch) == 3:
            raise SettingError("class_weight and the sample_weight of the batches exclude each other: leave one out")
        return (*batch, _keras.class_weights(batch[1], self._class_weight))


def _as_tuple(batch: Tree) -> Tree:
    """Return a batch as Keras takes it: a dict, or a tuple of x, y and sample_weight."""
    if isinstance(batch, dict):
        return batch
    batch = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    if not 1 <= len(batch) <= 3:
        raise DataError(
            f"a batch is x, (x, y) or (x, y, sample_weight), not a tuple of {len(batch)}: let map return one of those"
        )
    return batch
