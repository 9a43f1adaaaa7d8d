"""Ids that a table does not take: strings, objects, rows of different lengths, integers that are no id of the table.

Rule: the error names the function that makes ids of them. Rows of ids are filled up with -1, by `pad_ids`: other
functions fill with 0, which is an id.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from anytpu.errors import DataError
from anytpu.pipeline.missing import first_true


def refuse_forms(name: str, ids: Any, table: str) -> None:
    """Refuse forms that are no rectangular integers.

    Args:
        name: name of the ids, for errors.
        ids: an array, a symbolic tensor, or a list of numbers or of rows.
        table: name of the table.

    Raises:
        DataError: the ids are strings, objects, or rows of different lengths.
    """
    dtype = getattr(ids, "dtype", None)
    is_object = getattr(dtype, "kind", None) == "O"
    if dtype == "string" or getattr(dtype, "kind", None) in ("S", "U", "T"):
        _refuse_strings(name, dtype, table)
    if not is_object and not isinstance(ids, list | tuple):
        return
    values = list(np.asarray(ids).reshape(-1)) if is_object else list(ids)
    rows = [value for value in values if isinstance(value, list | tuple | np.ndarray)]
    element = next((row for row in rows if len(row)), values)[:1]
    if np.asarray(element).dtype.kind in ("S", "U", "T"):
        _refuse_strings(name, "strings", table)
    if rows and (is_object or len(rows) < len(values) or len({len(row) for row in rows}) > 1):
        raise DataError(
            f"{name} has rows of different lengths, and the table {table!r} takes rows of one length: fill them up "
            "with -1, which stands for no id, tpu.embedding.pad_ids(rows). keras.utils.pad_sequences fills with 0, an "
            "id"
        )
    if any(isinstance(value, str | bytes) for value in values):
        _refuse_strings(name, "strings", table)
    if is_object:
        raise DataError(
            f"{name} holds {dtype}, and the table {table!r} takes integers: put -1, which stands for no id, in place "
            'of missing values, and cast the others, array.astype("int32")'
        )


def check_range(name: str, array: Any) -> None:
    """Refuse integers that a cast to 32 bits would turn into other ids.

    Args:
        name: name of the array, for errors.
        array: an array of the host; others are not checked.

    Raises:
        DataError: an integer is beyond 32 bits.
    """
    dtype = None if isinstance(array, jax.Array) else getattr(array, "dtype", None)
    if getattr(dtype, "kind", None) not in ("i", "u") or np.dtype(dtype).itemsize <= 4 or not array.size:
        return
    low, high = array.min(), array.max()
    if low < -(2**31) or high >= 2**31:
        raise DataError(
            f"{name} has the integer {(high if high >= 2**31 else low).item():,}, which 32 bits do not hold, and "
            "the model has embedding tables: check the ids, or hash them into fewer (tpu.pipeline.hash_ids)"
        )


def _refuse_strings(name: str, kind: Any, table: str) -> None:
    raise DataError(
        f"{name} holds {kind}, and the table {table!r} takes integers: make ids first, "
        "tpu.pipeline.Vocabulary.of(strings)(strings) or tpu.pipeline.hash_ids(strings, input_dim)"
    )


def without_bad_ids(
    name: str, ids: Any, size: int, table: str, drops: bool, size_name: str = "input_dim", of_batch: str = ""
) -> Any:
    """Return an array of ids of the host, with -1 in place of those outside of a table.

    Args:
        name: name of the array, for errors.
        ids: rectangular ids.
        size: number of ids of the table.
        table: its name.
        drops: whether bad ids become -1; otherwise they are an error.
        size_name: the user's name of `size`, for errors.
        of_batch: text after the number of a row, for errors.

    Raises:
        DataError: an id is outside of the table, or no integer.
    """
    array = np.asarray(ids)
    if not array.size:
        return ids
    if array.dtype.kind == "f":
        # NaN is bad too: each comparison with it is false.
        is_bad = ~((array >= -1) & (array < size) & (array == np.floor(array)))
    elif array.min() >= -1 and array.max() < size:
        return ids
    else:
        is_bad = (array < -1) | (array >= size)
    if not is_bad.any():
        return ids
    if drops:
        return np.where(is_bad, -1, array)
    first = first_true(is_bad)
    count, value = int(is_bad.sum()), array[first].item()
    more = f" ({count:,} such ids)" if count > 1 else ""
    advice = f"Enlarge {size_name}" if value >= size else "Check how negative ids are made"
    if not np.isfinite(value) or value != np.floor(value):
        advice = "Ids are integers: check that this column holds ids"
    dropping = 'on_bad_id="drop"' if size_name == "input_dim" else "validate_weights_and_indices=False"
    raise DataError(
        f"{name}, row {first[0]:,}{of_batch}, has the id {value:,}{more}, and the table {table!r} has the ids 0 to "
        f"{size - 1:,}; -1 stands for no id. {advice}, or pass {dropping} to leave such ids out"
    )
