"""`first_bad`: the index of the first bad number of an array, for an error."""

from __future__ import annotations

import numpy as np


def first_bad(is_bad: np.ndarray) -> tuple[int, ...]:
    """Return the index of the first True.

    Example:
        >>> first_bad(np.array([[False, False], [False, True]]))
        (1, 1)
    """
    return tuple(int(index) for index in np.argwhere(is_bad)[0])
