"""Pad sequences of many lengths to a few lengths.

Idea: a program is compiled for one shape. Batches of sequences are padded to the next power of two steps and carry
their lengths, so that all lengths share a few programs. `masking` excludes the added steps from the results. A row is
padded by repeating its last step, a value that is valid for the model.

Rule: batches of the first length that a model gets are not padded, so that data of one length costs nothing. A model
with a layer that cannot be padded (see `time_axis`) runs unpadded, with one warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.engine.feeds import power_of_two
from anytpu.errors import DataError
from anytpu.program.program import Tree
from anytpu.train.time_axis import NotPaddable, TimeAxis, check_targets, is_open, is_open_shape, time_axis_of

LENGTHS = "_anytpu_lengths"
"""The attribute of a model that holds the numbers of steps to pad to."""

_MIN_SIZE = 8
"""The smallest power of two that sequences are padded to."""

Lengths = tuple[Any, ...]
"""For each leaf of x the number of real steps of each row, int32 `(rows,)`; None for a leaf that is not padded."""


class Padded(tuple):
    """A batch `(x, y, sample_weight)` of padded sequences; Keras reads it like any other batch.

    Attributes:
        lengths: number of real steps of each row, see `Lengths`.
    """

    lengths: Lengths

    def __new__(cls, batch: tuple, lengths: Lengths) -> Padded:
        """Make a padded batch from its parts and the lengths of its rows."""
        made = super().__new__(cls, batch)
        made.lengths = lengths
        return made


jax.tree_util.register_pytree_node(
    Padded, lambda batch: ((tuple(batch), batch.lengths), None), lambda _, parts: Padded(*parts)
)


class Predicted(NamedTuple):
    """Predictions from padded sequences.

    Attributes:
        outputs: the model's outputs, padded.
        lengths: for each leaf of `outputs` the number of real steps in the longest row; None if it has no time axis.
    """

    outputs: Tree
    lengths: Lengths


def predicted(outputs: Tree, axis: TimeAxis, lengths: Lengths) -> Tree:
    """Return a model's outputs for padded sequences, with their lengths if an output has a time axis."""
    if not any(axis.outputs):
        return outputs
    ends = [None if steps is None else steps.length_of(lengths[steps.source].max()) for steps in axis.outputs]
    return Predicted(outputs, tuple(ends))


class Padding:
    """Pads the batches of one model.

    Args:
        model: the model.
        sizes: the numbers of steps to pad to. Longer sequences, or all if `sizes` is empty, are padded to powers of
            two.
    """

    def __init__(self, model: Any, sizes: Sequence[int] = ()) -> None:
        self._model = model
        self._sizes = sorted(sizes)
        self._axis: TimeAxis | None = None
        self._reason = ""
        self._has_warned = False
        self._first: tuple[int, ...] | None = None

    @property
    def is_paddable(self) -> bool:
        """Whether the model is built and takes sequences of any length."""
        return is_open(self._model)

    @property
    def _graph(self) -> Any:
        return _keras.graph_of(self._model)

    @property
    def axis(self) -> TimeAxis | None:
        """The time axis of the model's tensors; None if its sequences cannot be padded."""
        if self._axis is None and not self._reason:
            try:
                self._axis = time_axis_of(self._model)
            except NotPaddable as reason:
                self._reason = str(reason)
        return self._axis

    def _obstacle(self, has_targets: bool) -> str:
        """Return why the sequences cannot be padded, or ""."""
        if self.axis is None:
            return self._reason
        if has_targets and self._model.compiled:
            try:
                check_targets(self._model, self.axis)
            except NotPaddable as reason:
                return str(reason)
        return ""

    def padded(self, batch: Any, may_stay: bool) -> Any:
        """Return the padded batch, or the batch itself if it need not or cannot be padded.

        Args:
            batch: `(x, y, sample_weight)`, or fewer, as Keras's data adapters yield it. A leaf of x may be an object
                array of rows of different lengths.
            may_stay: whether a batch of the first length that the model got stays unpadded.

        Raises:
            DataError: rows have different lengths, and the model cannot take them padded.
        """
        if not self.is_paddable:
            return batch
        # 1. Find the inputs with a time axis, and the lengths of their rows.
        x, *others = batch if isinstance(batch, tuple) else (batch,)
        leaves = self._in_order(x)
        opens = [is_open_shape(tensor.shape) for tensor in self._graph.inputs]
        if len(leaves) != len(opens) or not all(_is_sequence(leaf) for leaf in _chosen(leaves, opens)):
            return batch
        lengths = [_lengths(leaf) if is_open else None for leaf, is_open in zip(leaves, opens, strict=True)]
        # 2. A batch of one length may stay as it is; rows of different lengths must be padded.
        is_ragged = any(leaf.dtype == object for leaf in leaves)
        if not is_ragged:
            first_lengths = tuple(int(length[0]) for length in _chosen(lengths, opens))
            if self._stays(first_lengths, may_stay, len(others)):
                return batch
        # 3. Pad, if the model allows it.
        self._check(lengths, is_ragged, len(others))
        return self._filled(leaves, others, lengths)

    def size_of(self, length: int) -> int:
        """Return the number of steps to which a sequence of this length is padded.

        Example:
            >>> [Padding(None, sizes=(20, 50)).size_of(length) for length in (3, 21, 51)]
            [20, 50, 64]
        """
        return next((size for size in self._sizes if size >= length), max(_MIN_SIZE, power_of_two(length)))

    def _in_order(self, x: Any) -> list[Any]:
        """Return the leaves of x in the order of the model's inputs."""
        names = [tensor.name for tensor in self._graph.inputs]
        if len(names) == 1 and (rows := rows_of(x)) is not None:
            return [rows]
        if isinstance(x, dict) and not isinstance(self._graph.input, dict):
            return [x[name] for name in names if name in x]
        return jax.tree.leaves(x)

    def _stays(self, lengths: tuple[int, ...], may_stay: bool, targets: int) -> bool:
        """Return whether a batch of rectangular arrays of these lengths stays unpadded."""
        self._first = self._first or lengths
        if may_stay and lengths == self._first:
            return True
        if reason := self._obstacle(targets > 0):
            self._warn(lengths, reason)
            return True
        assert self.axis is not None
        # For inputs too short for the model, or of mismatched lengths, Keras raises its own error.
        return min(lengths) < self.axis.min_steps or (self.axis.is_joint and len(set(lengths)) > 1)

    def _warn(self, lengths: tuple[int, ...], reason: str) -> None:
        if self._has_warned or self._first == lengths:
            return
        self._has_warned = True
        warnings.warn(
            f"{self._model.name!r} is compiled anew for each length of its sequences ({_listed(lengths)} after "
            f"{_listed(self._first or ())}), since they cannot be padded: {reason}. Pass sequences of one length, "
            "or of few",
            stacklevel=2,
        )

    def _check(self, lengths: list[Any], is_ragged: bool, targets: int) -> None:
        axis, reason = self.axis, self._obstacle(targets > 0)
        if axis is None or reason:
            raise DataError(
                f"the rows of x have different lengths, and {self._model.name!r} cannot take them padded: "
                f"{reason}. Pass rows of one length, such as keras.utils.pad_sequences(x) makes"
            )
        present = [steps for steps in lengths if steps is not None]
        if is_ragged and axis.is_joint and any((steps != present[0]).any() for steps in present):
            raise DataError("the inputs of a row have different lengths, and the model joins them step by step")
        for steps in present:
            if steps.min() < axis.min_steps:
                row = int(steps.argmin())
                raise DataError(
                    f"row {row} of a batch has {steps[row]} steps, and {self._model.name!r} takes {axis.min_steps} or "
                    "more: leave the row out, or fill it"
                )

    def _filled(self, leaves: list[Any], others: list[Any], lengths: list[Any]) -> Padded:
        assert self.axis is not None
        sizes = [None if steps is None else self.size_of(int(steps.max())) for steps in lengths]
        triples = zip(leaves, sizes, self.axis.pads, strict=True)
        x = [leaf if size is None else _filled(leaf, size, pad) for leaf, size, pad in triples]
        # Of several outputs none has a time axis: see `check_targets`.
        steps, *_ = self.axis.outputs
        end = None if steps is None else steps.length_of(sizes[steps.source])
        padded = [_filled_targets(tree, end, is_weight) for tree, is_weight in zip(others, (False, True))]  # noqa: B905
        x = keras.tree.pack_sequence_as(self._graph.input, x)
        return Padded((x, *padded), tuple(lengths))


def _filled_targets(tree: Any, end: int | None, is_weight: bool) -> Any:
    """Pad the targets, or the weights, of a model's only output to `end` steps, or not at all for None."""
    if tree is None or end is None:
        return tree
    if (rows := rows_of(tree)) is not None:
        return _filled(rows, end)
    return jax.tree.map(lambda leaf: _filled(leaf, end, 0 if is_weight else None) if np.ndim(leaf) > 1 else leaf, tree)


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


def _is_sequence(leaf: Any) -> bool:
    return leaf.dtype == object or np.ndim(leaf) > 1


def _chosen(values: list[Any], chosen: list[bool]) -> list[Any]:
    return [value for value, is_chosen in zip(values, chosen, strict=True) if is_chosen]


def _lengths(leaf: Any) -> np.ndarray:
    """Return the number of steps of each row, int32 `(rows,)`."""
    if leaf.dtype == object:
        return np.array([len(row) for row in leaf], np.int32)
    return np.full(len(leaf), leaf.shape[1], np.int32)


def _filled(leaf: Any, size: int, pad: float | None = None) -> np.ndarray:
    """Pad each row to `size` steps, with the value `pad` or, if None, with the row's last step."""
    if leaf.dtype != object:
        leaf = np.asarray(leaf)
        width = [(0, 0), (0, size - leaf.shape[1]), *[(0, 0)] * (leaf.ndim - 2)]
        return np.pad(leaf, width, mode="edge") if pad is None else np.pad(leaf, width, constant_values=pad)
    filled = np.empty((len(leaf), size, *leaf[0].shape[1:]), np.result_type(*{row.dtype for row in leaf}))
    for row, values in zip(filled, leaf, strict=True):
        row[: len(values)] = values
        row[len(values) :] = values[-1] if pad is None else pad
    return filled


def _listed(lengths: tuple[int, ...]) -> str:
    return " and ".join(str(length) for length in lengths)
