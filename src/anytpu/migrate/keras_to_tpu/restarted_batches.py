"""`RestartedBatches`: a data set that calls a function for each pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np

from anytpu import _keras

_DataAdapter: Any = _keras.data_adapter_class()


class RestartedBatches(_DataAdapter):
    """A data set that starts again for each pass.

    Args:
        start: returns the batches of one pass, as tuples `(x, y)` or `(x, y, sample_weight)`.
    """

    num_batches: int | None = None
    batch_size: int | None = None
    has_partial_batch = False
    partial_batch_size: int | None = None

    def __init__(self, start: Callable[[], Iterable[Any]]) -> None:
        self._start = start

    def get_jax_iterator(self) -> Iterator[Any]:
        """Start a pass over batches of NumPy or JAX arrays."""
        return (keras.tree.map_structure(_array, batch) for batch in self._start())

    get_numpy_iterator = get_jax_iterator


def _array(leaf: Any) -> Any:
    return leaf if leaf is None or isinstance(leaf, np.ndarray) else np.asarray(leaf)
