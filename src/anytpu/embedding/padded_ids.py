"""Ids in the forms that users have: dense, ragged or sparse, with weights; as rectangular arrays.

Idea: compiled code needs rectangular arrays. Rows of ids of different lengths are filled up with -1, which stands for
no id. Lengths are powers of two, so that few programs are compiled.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from anytpu._calls import explain_arguments
from anytpu.errors import DataError


@dataclasses.dataclass(frozen=True)
class PaddedIds:
    """Rectangular ids, and their weights.

    Attributes:
        ids: `(rows, length)`, int32 or int64; -1 stands for no id.
        weights: float32 `(rows, length)`; None if all ids count once.
    """

    ids: np.ndarray
    weights: np.ndarray | None


@explain_arguments
def pad_ids(
    ids: Any, *, weights: Any = None, length: int | None = None, on_long: str = "raise", name: str = "ids"
) -> Any:
    """Return ids as a rectangular array filled up with -1; with weights a pair of arrays.

    Args:
        ids: a list of lists, an array of arrays, or a dense array `(rows,)` or `(rows, ids)`. Or a `scipy.sparse`
            matrix whose stored values are ids (id 0 too must be stored), or a ragged or sparse tensor of TensorFlow.
        weights: the weight of each id, in the same form; None if all ids count once.
        length: number of ids of a row; None takes the longest row, rounded up to a power of two.
        on_long: treatment of longer rows: "raise", or "cut" to keep their first ids.
        name: name of the feature, for errors.

    Raises:
        DataError: a row is longer than `length`, or the weights have another form than the ids or are not finite.

    Example:
        >>> pad_ids([[3, 5, 7], [2]])
        array([[ 3,  5,  7, -1],
               [ 2, -1, -1, -1]])
    """
    padded = padded_ids(ids, weights, length, on_long == "cut", name)
    return padded.ids if padded.weights is None else (padded.ids, padded.weights)


def padded_ids(ids: Any, weights: Any, length: int | None, cuts: bool, name: str) -> PaddedIds:
    """Return rectangular ids and weights; see `pad_ids`.

    Args:
        ids: the ids.
        weights: their weights, or None.
        length: number of ids of a row, or None.
        cuts: whether longer rows are cut.
        name: name of the feature, for errors.
    """
    rows, row_weights = _rows_of(ids), None if weights is None else _rows_of(weights)
    lengths = [len(row) for row in rows]
    if row_weights is not None and [len(row) for row in row_weights] != lengths:
        raise DataError(f"the weights of {name!r} have other rows than its ids: give one weight for each id")
    longest = max(lengths, default=0)
    if length is None:
        # Dense ids keep their shape; others get few different ones.
        is_dense = isinstance(rows, np.ndarray) and rows.dtype != object
        length = longest if is_dense else 1 << max(longest - 1, 0).bit_length()
    elif longest > length and not cuts:
        row = next(index for index, size in enumerate(lengths) if size > length)
        raise DataError(
            f"{name!r}, row {row:,}, has {lengths[row]:,} ids, and a row has at most {length:,}: raise the limit, or "
            'pass on_long="cut" to keep the first ids'
        )
    dtypes = {np.asarray(row).dtype for row in rows if len(row)}
    filled = _integers(name, _filled(rows, length, -1, np.result_type(*dtypes or {np.dtype("int64")})))
    if row_weights is None:
        return PaddedIds(filled, None)
    filled_weights = _filled(row_weights, length, 0, np.dtype("float32"))
    if not np.isfinite(filled_weights).all():
        row, place = (int(index) for index in np.argwhere(~np.isfinite(filled_weights))[0])
        raise DataError(
            f"{name!r}, row {row:,}, has the weight {filled_weights[row, place].item()} for the id "
            f"{filled[row, place].item():,}: a weight must be a finite number"
        )
    return PaddedIds(filled, filled_weights)


def _integers(name: str, ids: np.ndarray) -> np.ndarray:
    """Return ids as integers; refuse numbers that are none, or that a float64 may have rounded."""
    if ids.dtype.kind in "iu":
        return ids
    if ids.dtype.kind not in "fb":
        raise DataError(
            f"{name!r} holds {ids.dtype}: turn strings into ids first, such as "
            "pad_ids([vocabulary(row) for row in rows]) with a tpu.pipeline.Vocabulary"
        )
    is_bad = ~((ids == np.floor(ids)) & (np.abs(ids) < 2**53))
    if is_bad.any():
        row, place = (int(index) for index in np.argwhere(is_bad)[0])
        raise DataError(f"{name!r}, row {row:,}, has {ids[row, place].item()}, which is no id: pass integers")
    return ids.astype("int64")


def _filled(rows: Any, length: int, filling: float, dtype: Any) -> np.ndarray:
    array = np.full((len(rows), length), filling, dtype)
    for index, row in enumerate(rows):
        part = row[:length]
        array[index, : len(part)] = part
    return array


def _rows_of(ids: Any) -> Any:
    """Return ids as a sequence of rows."""
    if hasattr(ids, "to_list"):  # A ragged tensor of TensorFlow.
        return ids.to_list()
    if hasattr(ids, "dense_shape"):  # A sparse tensor of TensorFlow.
        return _sparse_rows(np.asarray(ids.indices), np.asarray(ids.values), int(ids.dense_shape[0]))
    if hasattr(ids, "tocoo"):
        sparse = ids.tocoo()
        return _sparse_rows(np.stack([sparse.row, sparse.col], axis=1), sparse.data, sparse.shape[0])
    if isinstance(ids, list | tuple):
        return [np.asarray(row).reshape(-1) for row in ids]
    array = np.asarray(ids)
    return array if array.dtype == object or array.ndim > 1 else array[:, None]


def _sparse_rows(places: np.ndarray, values: np.ndarray, count: int) -> list[np.ndarray]:
    order = np.lexsort((places[:, 1], places[:, 0]))
    ends = np.searchsorted(places[order, 0], np.arange(count + 1))
    return [values[order[first:last]] for first, last in itertools.pairwise(ends)]
