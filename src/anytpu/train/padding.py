"""Pad sequences of many lengths to a few lengths, in a model that masks steps by itself.

Idea: a program is compiled for one shape. Batches of sequences are padded to the next power of two steps, so that all
lengths share a few programs. The padding has the value that the model masks, so the numbers stay the same.

Rule: batches of the first length that a model gets are not padded, so that data of one length costs nothing. A model
that cannot be padded (see `own_masks`) is compiled for each length, with one warning. It takes no rows of different
lengths in one batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.engine.feeds import power_of_two
from anytpu.errors import DataError
from anytpu.train.own_masks import NotPaddable, is_open, is_open_shape, pads_of

LENGTHS = "_anytpu_lengths"
"""The attribute of a model that holds the numbers of steps to pad to."""

_MIN_SIZE = 8
"""The smallest power of two that sequences are padded to."""


class Padding:
    """Pads the batches of one model.

    Args:
        model: the model.
        sizes: the numbers of steps to pad to. Longer sequences, or all if `sizes` is empty, are padded to powers of
            two.

    Attributes:
        first: number of steps of each sequence in the first batch; such batches stay as they are. None before it.
    """

    def __init__(self, model: Any, sizes: Sequence[int] = ()) -> None:
        self._model = model
        self._sizes = sorted(sizes)
        self._pads: tuple[float | None, ...] | None = None
        self._has_warned = False
        self.first: tuple[int, ...] | None = None

    def padded(self, batch: Any) -> Any:
        """Return the padded batch, or the batch itself if it need not or cannot be padded.

        Args:
            batch: `(x, y, sample_weight)`, or fewer, as Keras's data adapters yield it. A leaf of x may be an object
                array of rows of different lengths.

        Raises:
            DataError: rows have different lengths, and the model cannot take them padded.
        """
        if not is_open(self._model):
            return batch
        # 1. Find the inputs with a time axis. Rows of different lengths become an array.
        x, *others = batch if isinstance(batch, tuple) else (batch,)
        graph: Any = _keras.graph_of(self._model)
        leaves, opens = self._in_order(graph, x), [is_open_shape(tensor.shape) for tensor in graph.inputs]
        if len(leaves) != len(opens):
            return batch
        given = leaves
        leaves = [self._rectangle(leaf, index) for index, leaf in enumerate(leaves)]
        sequences = [leaf for leaf, is_open in zip(leaves, opens, strict=True) if is_open]
        if any(np.ndim(leaf) < 2 for leaf in sequences):
            return batch
        # 2. Pad, unless the batch has the first lengths. For an input without steps, Keras raises its own error.
        lengths = tuple(int(leaf.shape[1]) for leaf in sequences)
        self.first = self.first or lengths
        if lengths != self.first and min(lengths) and self._warned_pads(lengths) is not None:
            leaves = [
                _filled(leaf, self.size_of(leaf.shape[1]), pad) if is_open else leaf
                for leaf, is_open, pad in zip(leaves, opens, self._own_pads(), strict=True)
            ]
        if all(leaf is before for leaf, before in zip(leaves, given, strict=True)):
            return batch
        return (keras.tree.pack_sequence_as(graph.input, leaves), *others)

    def filled(self, rows: np.ndarray, index: int = 0) -> np.ndarray:
        """Return rows of different lengths as an array of the longest length.

        Args:
            rows: object array of arrays.
            index: index of the model's input that takes them.

        Raises:
            DataError: the model cannot take them padded, or a row is empty.
        """
        lengths = np.array([len(row) for row in rows])
        size, pad = int(lengths.max()), 0.0
        if lengths.min() < size:
            try:
                pad = self._own_pads()[index]
            except NotPaddable as reason:
                raise DataError(
                    f"the rows of x have different lengths, and {self._model.name!r} cannot take them padded: "
                    f"{reason}. Pass rows of one length, such as keras.utils.pad_sequences(x) makes"
                ) from None
        if not lengths.min():
            raise DataError(
                f"row {int(lengths.argmin())} of a batch has 0 steps, and {self._model.name!r} takes 1 or more: leave "
                "the row out, or fill it"
            )
        dtype = np.result_type(*{row.dtype for row in rows})
        return np.stack([_filled(row[None], size, pad)[0] for row in rows]).astype(dtype)

    def with_filled_rows(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of fit, evaluate or predict with an array in place of rows of different lengths.

        Keras draws, splits and weights the rows of an array. It takes lists of targets and weights beside a list of
        rows only, so these become arrays too. Arguments without such rows are not changed.

        Args:
            arguments: the arguments by name.

        Raises:
            DataError: the model does not take such rows.
        """
        rows = _rows(self._model, arguments.get("x"))
        if rows is not None:
            others = {name: _array(arguments[name]) for name in ("y", "sample_weight") if name in arguments}
            arguments = {**arguments, **others, "x": self.filled(rows)}
        validation = arguments.get("validation_data")
        if isinstance(validation, tuple | list) and len(validation) > 1:
            rows = _rows(self._model, validation[0])
            if rows is not None:
                arguments = {**arguments, "validation_data": (self.filled(rows), *map(_array, validation[1:]))}
        return arguments

    def size_of(self, length: int) -> int:
        """Return the number of steps to which a sequence of this length is padded.

        Example:
            >>> [Padding(None, sizes=(20, 50)).size_of(length) for length in (3, 21, 51)]
            [20, 50, 64]
        """
        return next((size for size in self._sizes if size >= length), max(_MIN_SIZE, power_of_two(length)))

    def _own_pads(self) -> tuple[float | None, ...]:
        if self._pads is None:
            self._pads = pads_of(self._model)
        return self._pads

    def _warned_pads(self, lengths: tuple[int, ...]) -> tuple[float | None, ...] | None:
        """Return the values to pad with; None, with one warning, if the model is compiled for each length."""
        try:
            return self._own_pads()
        except NotPaddable as reason:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"{self._model.name!r} is compiled anew for each length of its sequences ({_listed(lengths)} after "
                    f"{_listed(self.first or ())}), since they cannot be padded: {reason}. Pass sequences of one "
                    "length, or of few",
                    stacklevel=2,
                )
            return None

    def _in_order(self, graph: Any, x: Any) -> list[Any]:
        """Return the leaves of x in the order of the model's inputs."""
        names = [tensor.name for tensor in graph.inputs]
        if len(names) == 1 and (rows := rows_of(x)) is not None:
            return [rows]
        if isinstance(x, dict) and not isinstance(graph.input, dict):
            return [x[name] for name in names if name in x]
        return jax.tree.leaves(x)

    def _rectangle(self, leaf: Any, index: int) -> Any:
        return self.filled(leaf, index) if leaf.dtype == object else leaf


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


def rows_of(x: Any) -> np.ndarray | None:
    """Return rows of different lengths as an object array of arrays; None if x is not a sequence of rows.

    Example:
        >>> [row.tolist() for row in rows_of([[1, 2, 3], [4]])]
        [[1, 2, 3], [4]]
        >>> rows_of(np.zeros((2, 3))) is None
        True
    """
    if isinstance(x, np.ndarray):
        listed = list(x) if x.dtype == object and x.ndim == 1 else []
    else:
        listed = list(x) if isinstance(x, list | tuple) else []
        if len(listed) == 1 and not isinstance(listed[0], list | tuple):
            # A list of one array is a single input, as in Keras.
            return None
    if not listed or not all(isinstance(row, list | tuple) or np.ndim(row) for row in listed):
        return None
    rows = np.empty(len(listed), object)
    for index, row in enumerate(listed):
        array = np.asarray(row)
        is_python = isinstance(row, list | tuple) and array.dtype == np.float64
        rows[index] = array.astype(keras.config.floatx()) if is_python else array
    return rows if all(row.dtype != object for row in rows) else None


def _array(values: Any) -> Any:
    """Return a list of numbers, or of rows of numbers, as an array, of Keras's float type if it has floats."""
    if not isinstance(values, list) or not all(
        isinstance(value, list | tuple) or not np.ndim(value) for value in values
    ):
        return values
    array = np.asarray(values)
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array


def _filled(leaf: Any, size: int, pad: float | None) -> np.ndarray:
    """Add steps of the value `pad` at the end of each row, up to `size` steps."""
    leaf = np.asarray(leaf)
    width = [(0, 0), (0, size - leaf.shape[1]), *[(0, 0)] * (leaf.ndim - 2)]
    return np.pad(leaf, width, constant_values=0 if pad is None else pad)


def _listed(lengths: tuple[int, ...]) -> str:
    return " and ".join(str(length) for length in lengths)
