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
from anytpu.errors import DataError, SettingError
from anytpu.pipeline.missing import first_missing, first_true


@dataclasses.dataclass(frozen=True)
class PaddedIds:
    """Rectangular ids, and their weights.

    Attributes:
        ids: `(rows, length)`, int32 or int64; -1 stands for no id.
        weights: float32 `(rows, length)`; None if all ids count once.
        cut: the first row that was cut and its number of ids before, or None.
    """

    ids: np.ndarray
    weights: np.ndarray | None
    cut: tuple[int, int] | None = None


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
        SettingError: `on_long` is none of these.
        DataError: a row is longer than `length`, or nested, or has a missing value. Or the weights have another form
            than the ids, or are not finite.

    Example:
        >>> pad_ids([[3, 5, 7], [2]])
        array([[ 3,  5,  7, -1],
               [ 2, -1, -1, -1]])
    """
    if on_long not in ("raise", "cut"):
        raise SettingError(f'on_long must be "raise" or "cut", not {on_long!r}')
    padded = padded_ids(ids, weights, length, on_long == "cut", name)
    return padded.ids if padded.weights is None else (padded.ids, padded.weights)


def padded_ids(ids: Any, weights: Any, length: int | None, cuts: bool, name: str) -> PaddedIds:
    """Return rectangular ids and weights as `pad_ids` does; `cuts` is whether longer rows are cut."""
    # 1. Rows of ids, each with as many weights.
    rows, row_weights = _rows_of(name, ids), None if weights is None else _rows_of(name, weights, False)
    lengths = [len(row) for row in rows]
    if row_weights is not None and [len(row) for row in row_weights] != lengths:
        raise DataError(f"the weights of {name!r} have other rows than its ids: give one weight for each id")
    # 2. The length of a row.
    longest, cut = max(lengths, default=0), None
    if length is None:
        # Dense ids keep their shape; others get few different ones.
        is_dense = isinstance(rows, np.ndarray) and rows.dtype != object
        length = longest if is_dense else 1 << max(longest - 1, 0).bit_length()
    elif longest > length:
        row = next(index for index, size in enumerate(lengths) if size > length)
        cut = row, lengths[row]
    if cut is not None and not cuts:
        raise DataError(
            f"{name!r}, row {cut[0]:,}, has {cut[1]:,} ids, and a row has at most {length:,}: raise the limit, or "
            'pass on_long="cut" to keep the first ids'
        )
    # 3. Fill up ids and weights.
    dtypes = {np.asarray(row).dtype for row in rows if len(row)}
    filled = _integers(name, _filled(rows, length, -1, np.result_type(*dtypes or {np.dtype("int64")})))
    if row_weights is None:
        return PaddedIds(filled, None, cut)
    filled_weights = _filled(row_weights, length, 0, np.dtype("float32"))
    # 4. Check the weights where the ids are at hand for the error.
    is_bad = ~np.isfinite(filled_weights)
    if is_bad.any():
        row, place = first_true(is_bad)
        raise DataError(
            f"{name!r}, row {row:,}, has the weight {filled_weights[row, place].item()} for the id "
            f"{filled[row, place].item():,}: a weight must be a finite number"
        )
    return PaddedIds(filled, filled_weights, cut)


def _integers(name: str, ids: np.ndarray) -> np.ndarray:
    """Return ids as integers; refuse numbers that are none, or that a float64 may have rounded."""
    if ids.dtype.kind in "iu":
        return ids
    if ids.dtype.kind not in "fb":
        raise DataError(
            f"{name!r} holds {ids.dtype}: turn strings into ids first, such as pad_ids(vocabulary(rows)) with a "
            "tpu.pipeline.Vocabulary, or pad_ids(tpu.pipeline.hash_ids(rows, 1000))"
        )
    is_bad = ~((ids == np.floor(ids)) & (np.abs(ids) < 2**53))
    if is_bad.any():
        row, place = first_true(is_bad)
        raise DataError(f"{name!r}, row {row:,}, has {ids[row, place].item()}, which is no id: pass integers")
    return ids.astype("int64")


def _filled(rows: Any, length: int, filling: float, dtype: Any) -> np.ndarray:
    array = np.full((len(rows), length), filling, dtype)
    for index, row in enumerate(rows):
        part = row[:length]
        array[index, : len(part)] = part
    return array


def _rows_of(name: str, ids: Any, are_ids: bool = True) -> Any:
    """Return ids, or their weights, as a sequence of rows.

    Raises:
        DataError: an id is missing, or rows are nested.
    """
    if hasattr(ids, "to_list"):  # A ragged tensor of TensorFlow.
        return ids.to_list()
    if hasattr(ids, "dense_shape"):  # A sparse tensor of TensorFlow.
        return _sparse_rows(np.asarray(ids.indices), np.asarray(ids.values), int(ids.dense_shape[0]))
    if hasattr(ids, "tocoo"):
        sparse = ids.tocoo()
        return _sparse_rows(np.stack([sparse.row, sparse.col], axis=1), sparse.data, sparse.shape[0])
    if isinstance(ids, list | tuple):
        return [_row(name, index, row, are_ids) for index, row in enumerate(ids)]
    array = np.asarray(ids)
    if array.dtype == object:
        return [_row(name, index, row, are_ids) for index, row in enumerate(array)]
    if array.ndim > 2:
        raise DataError(f"{name!r} has the shape {array.shape}: pass (rows, ids), or each place as its own feature")
    if are_ids:
        _check_present(name, array)
    return array if array.ndim > 1 else array.reshape(-1, 1)


def _row(name: str, index: int, row: Any, are_ids: bool) -> np.ndarray:
    try:
        array = np.asarray(row)
    except ValueError:  # Lists of different lengths.
        array = None
    if array is None or max(array.shape, default=1) < array.size:
        raise DataError(
            f"{name!r}, row {index:,}, has lists in a list: pass one list of ids for each row, such as [[3, 5], [2]]"
        )
    if not are_ids:
        return array.astype("float32").reshape(-1)
    _check_present(name, array, index)
    # An array of objects may hold integers alone.
    return (np.array(array.tolist()) if array.dtype == object else array).reshape(-1)


def _check_present(name: str, array: np.ndarray, row: int | None = None) -> None:
    """Check that no value is missing; `row` is the row of the array, None if its first axis counts the rows."""
    place = first_missing(array)
    if place is not None:
        raise DataError(
            f"{name!r}, row {place[0] if row is None else row:,}, has the missing value {array[place]}: fill it with "
            "-1, which stands for no id, such as with column.fillna(-1) of pandas, or drop the row, column.dropna()"
        )


def _sparse_rows(places: np.ndarray, values: np.ndarray, count: int) -> list[np.ndarray]:
    # Sort by the row, then by the place in it: `lexsort` takes the last key first.
    order = np.lexsort((places[:, 1], places[:, 0]))
    ends = np.searchsorted(places[order, 0], np.arange(count + 1))
    return [values[order[first:last]] for first, last in itertools.pairwise(ends)]
