"""The index of the first bad value of an array, for an error: a missing one, None, NaN or of pandas, or any other."""

from __future__ import annotations

from typing import Any

import numpy as np

_OF_PANDAS = ("NAType", "NaTType")


def first_missing(array: np.ndarray) -> tuple[int, ...] | None:
    """Return the index of the first missing value of an array, or None if there is none.

    Example:
        >>> first_missing(np.array(["red", None], object))
        (1,)
    """
    if array.dtype.kind in "fc":
        is_missing = np.isnan(array)
    elif array.dtype.kind in "mM":
        is_missing = np.isnat(array)
    elif array.dtype == object:
        is_missing = np.array([is_missing_value(value) for value in array.flat], bool).reshape(array.shape)
    else:
        return None
    if not is_missing.any():
        return None
    return first_true(is_missing)


def is_missing_value(value: Any) -> bool:
    """Return whether a value is None, NaN, or a missing value of pandas."""
    is_number = isinstance(value, float | np.floating)
    return value is None or type(value).__name__ in _OF_PANDAS or (is_number and bool(value != value))


def first_true(is_bad: np.ndarray) -> tuple[int, ...]:
    """Return the index of the first True of an array that has one.

    Example:
        >>> first_true(np.array([[False, False], [False, True]]))
        (1, 1)
    """
    return tuple(int(index) for index in np.argwhere(is_bad)[0])
