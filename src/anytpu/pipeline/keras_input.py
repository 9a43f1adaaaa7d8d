"""The adapter through which Keras's `fit`, `evaluate` and `predict` read a `Dataset`.

Idea: Keras chooses a data adapter by the type of x. For a `Dataset` it gets this one, which iterates over the numeric
columns of the batches. So Keras knows the length where there is one, strings remain on the host, and nothing is
prefetched twice.

Rule: the adapter does not depend on a strategy; plain Keras and the compiled loop iterate over the same batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from anytpu import _keras
from anytpu.errors import DataError, SettingError

Tree = Any


def install(dataset_class: type) -> None:
    """Register the adapter for data sets of this class in Keras, once."""
    _keras.wrap(_keras.data_adapters_module(), "get_data_adapter", functools.partial(_extend_choice, dataset_class))


def _extend_choice(dataset_class: type, original: Callable) -> Callable:
    def get_data_adapter(x: Any, y: Any = None, sample_weight: Any = None, **others: Any) -> Any:
        if not isinstance(x, dataset_class):
            return original(x, y, sample_weight, **others)
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise DataError(
                    f"{name} must be None when x is a Dataset: its batches are x, (x, y) or (x, y, sample_weight). "
                    "Include it in the batches, with Dataset.from_arrays((x, y)) or with map"
                )
        return DatasetAdapter(x, others.get("class_weight"), others.get("steps_per_epoch"))

    return get_data_adapter


class DatasetAdapter:
    """Keras's data adapter for a `Dataset`.

    Args:
        dataset: the `Dataset`.
        class_weight: weight of each class by its index, or None.
        steps: number of steps in an epoch; None: the number of batches.

    Raises:
        SettingError: the data set is endless and `steps` is None.
        DataError: its elements are rows, not batches.
    """

    batch_size = has_partial_batch = partial_batch_size = None

    def __init__(self, dataset: Any, class_weight: dict[int, float] | None, steps: int | None) -> None:
        if dataset.is_endless and steps is None:
            raise SettingError(
                f"{dataset!r} is endless: pass steps_per_epoch (for validation data validation_steps; to evaluate and "
                "predict, steps), or remove repeat()"
            )
        if not dataset.is_batched:
            raise DataError(f"{dataset!r} yields single rows, but Keras needs batches: {dataset!r}.batch(32)")
        self._dataset = dataset
        self._class_weight = class_weight
        self._start: dict[str, Any] | None = None

    @property
    def num_batches(self) -> int | None:
        """Number of batches in an epoch; None if not known."""
        return self._dataset.left

    def get_jax_iterator(self) -> Iterator[Tree]:
        """Iterate over an epoch."""
        start, self._start = self._start, None
        for batch in self._dataset.numbers(start):
            yield self._weighted(_as_tuple(batch))

    get_numpy_iterator = get_jax_iterator

    def text(self) -> str:
        """Return the data set as text: its steps, seeds and sizes."""
        return repr(self._dataset)

    def position(self) -> dict[str, Any]:
        """Return the position in the data set, plain JSON."""
        return self._start or self._dataset.position()

    def start_at(self, position: dict[str, Any]) -> None:
        """Start the next pass at a position. Another data set's position is rejected when the pass starts."""
        self._start = position

    def on_epoch_begin(self) -> None:
        """Do nothing."""

    def on_epoch_end(self) -> None:
        """Do nothing: an iterator without references ends its threads itself."""

    def _weighted(self, batch: Tree) -> Tree:
        if self._class_weight is None or not isinstance(batch, tuple) or len(batch) == 1:
            return batch
        if len(batch) == 3:
            raise SettingError(
                "class_weight cannot be combined with the sample_weight of the batches: remove one of them"
            )
        return (*batch, _keras.class_weights(batch[1], self._class_weight))


def _as_tuple(batch: Tree) -> Tree:
    """Convert a batch to the form that Keras takes: a dict, or a tuple of x, y and sample_weight."""
    if isinstance(batch, dict):
        return batch
    batch = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    if not 1 <= len(batch) <= 3:
        raise DataError(
            f"a batch must be x, (x, y) or (x, y, sample_weight), not a tuple of {len(batch)}: return one of those in "
            "map"
        )
    return batch
