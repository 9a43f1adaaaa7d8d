"""Accept rows of different lengths in fit, evaluate and predict: lists of lists, or an object array of them.

Idea: Keras takes rectangular arrays, or batches. So rows of different lengths are turned into a data set of batches
that starts again for each pass. They are drawn, shuffled and weighted as Keras does with the rows of an array;
`padding` makes each batch rectangular.

Rule: the arguments are changed before Keras reads them. Arguments without such rows are not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import DataError, SettingError
from anytpu.train.padding import rows_of
from anytpu.train.time_axis import is_open_shape

_DEFAULT_BATCH_SIZE = 32


def with_batches(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of fit, evaluate or predict with batches in place of rows of different lengths.

    Args:
        model: the model.
        arguments: the arguments by name.

    Raises:
        DataError: the model does not take sequences of any length, or the numbers of rows, targets and weights differ.
        SettingError: validation_split is not below 1.
    """
    x = _rows(model, arguments.get("x"))
    if x is not None:
        arguments = _with_x(arguments, x)
    validation = arguments.get("validation_data")
    if isinstance(validation, tuple | list) and len(validation) > 1:
        rows = _rows(model, validation[0])
        if rows is not None:
            size = arguments.get("validation_batch_size") or arguments.get("batch_size") or _DEFAULT_BATCH_SIZE
            batches = _batches((rows, *validation[1:]), size)
            arguments = {**arguments, "validation_data": batches, "validation_batch_size": None}
    return {**arguments, "batch_size": None} if x is not None else arguments


def _rows(model: Any, x: Any) -> np.ndarray | None:
    """Return x as rows of a model's only input, or None; a list of arrays may be several inputs."""
    inputs = model.inputs if _keras.graph_of(model) is not None else None
    if inputs is not None and len(inputs) > 1:
        return None
    rows = rows_of(x)
    if rows is None or not (isinstance(x, np.ndarray) or all(isinstance(row, list | tuple) for row in x) or inputs):
        return None
    rank = len(inputs[0].shape) - 1 if inputs else rows[0].ndim
    if any(row.ndim != rank for row in rows):
        return None
    if inputs and is_open_shape(inputs[0].shape):
        return rows
    if len({len(row) for row in rows}) == 1:
        return None
    raise DataError(
        f"x has rows of different lengths, and {model.name!r} does not begin with an input of any length. Begin it "
        "with keras.Input((None,)), or cut and fill the rows to one length: keras.utils.pad_sequences(x)"
    )


def _with_x(arguments: dict[str, Any], x: np.ndarray) -> dict[str, Any]:
    size = arguments.get("batch_size") or _DEFAULT_BATCH_SIZE
    parts = (x, *(_arrays(arguments.get(name)) for name in ("y", "sample_weight")))
    # Keras takes the last rows of an array for validation, before it shuffles.
    split = arguments.get("validation_split") or 0.0
    if split and arguments.get("validation_data") is None:
        if not 0 < split < 1:
            raise SettingError(f"validation_split must be above 0 and below 1, not {split!r}")
        first = math.floor(len(x) * (1 - split))
        kept, parts = _select(parts, slice(first, None)), _select(parts, slice(first))
        arguments = {**arguments, "validation_data": _batches(kept, arguments.get("validation_batch_size") or size)}
    is_fit = "y" in arguments
    drawing = (
        {"shuffle": arguments.get("shuffle", True), "class_weight": arguments.get("class_weight")} if is_fit else {}
    )
    cleared = {name: None for name in ("y", "sample_weight", "class_weight") if name in arguments}
    return {**arguments, **cleared, "validation_split": 0.0, "x": _batches(parts, size, **drawing)}


def _batches(parts: tuple, size: int, shuffle: Any = False, class_weight: Any = None) -> RestartedBatches:
    """Return the batches of rows of (x, y, sample_weight), drawn as Keras draws them from arrays."""
    x: np.ndarray = parts[0]
    y, weight = (_arrays(part) for part in (*parts[1:], None, None)[:2])
    if any(len(leaf) != len(x) for leaf in jax.tree.leaves((y, weight))):
        lengths = ", ".join(str(len(leaf)) for leaf in jax.tree.leaves((x, y, weight)))
        raise DataError(f"x, y and sample_weight must have the same number of rows, but they have {lengths}")
    if class_weight is not None:
        weight = np.asarray(_keras.class_weights(y, class_weight))
    indices = _keras.array_adapter(np.arange(len(x)), size, shuffle)

    def start() -> Iterator[tuple]:
        for rows in _keras.row_indices(indices):
            yield _select((x, y, weight), rows)

    return RestartedBatches(start, math.ceil(len(x) / size))


def _arrays(tree: Any) -> Any:
    """Return targets or weights as arrays; they may have rows of different lengths too."""
    if isinstance(tree, list) and not any(np.ndim(element) for element in tree):
        array = np.asarray(tree)
        return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array
    rows = rows_of(tree)
    return jax.tree.map(np.asarray, tree) if rows is None else rows


def _select(parts: tuple, rows: Any) -> tuple:
    return tuple(jax.tree.map(lambda leaf: leaf[rows], part) for part in parts)


_DataAdapter: Any = _keras.data_adapter_class()


class RestartedBatches(_DataAdapter):
    """A data set that starts again for each pass.

    Args:
        start: returns the batches of one pass, as tuples `(x, y)` or `(x, y, sample_weight)`.
        num_batches: number of batches in a pass, None if unknown.
    """

    num_batches: int | None = None
    batch_size: int | None = None
    has_partial_batch = False
    partial_batch_size: int | None = None

    def __init__(self, start: Callable[[], Iterable[Any]], num_batches: int | None = None) -> None:
        self._start = start
        self.num_batches = num_batches

    def get_jax_iterator(self) -> Iterator[Any]:
        """Start a pass over batches of NumPy or JAX arrays."""
        return iter(self._start())

    get_numpy_iterator = get_jax_iterator


def passes_of(make: Callable[[], Iterable[Any]]) -> RestartedBatches:
    """Return a data set that calls `make()` for each pass; it returns an iterable, such as a generator."""
    return RestartedBatches(lambda: (keras.tree.map_structure(_array, batch) for batch in make()))


def _array(leaf: Any) -> Any:
    return leaf if leaf is None or isinstance(leaf, np.ndarray) else np.asarray(leaf)
