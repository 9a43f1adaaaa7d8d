"""`pack`: offline buffer allocation: addresses for buffers whose live ranges are all known, the largest first.

Idea: an online allocator may find the memory fragmented. With all live ranges known, the largest buffers are placed
first, each at the lowest address that is free during its live range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class LiveRange(NamedTuple):
    """The live range of a buffer: `units` units of memory from job `first` to job `last`, inclusive."""

    units: int
    first: int
    last: int


def pack(lifetimes: Sequence[LiveRange], units: int) -> list[int] | None:
    """Return an address for each buffer, such that buffers live at the same time do not overlap; None: none was found.

    Args:
        lifetimes: live ranges of the buffers.
        units: size of the memory, in units.

    Example:
        >>> pack([LiveRange(4, 0, 1), LiveRange(6, 1, 2), LiveRange(4, 2, 3)], 10)
        [6, 0, 6]
    """
    table = np.array(lifetimes, np.int64).reshape(-1, 3)
    starts = np.zeros(len(table), np.int64)
    is_placed = np.zeros(len(table), bool)
    # The largest first; of equal sizes, the earliest first. Each gets the lowest gap that is large enough.
    for number in np.lexsort((table[:, 1], -table[:, 0])):
        size, first, last = table[number]
        beside = np.flatnonzero(is_placed & (table[:, 1] <= last) & (first <= table[:, 2]))
        beside = beside[np.argsort(starts[beside])]
        # The gaps: from the highest end so far to the next start.
        ends = np.maximum.accumulate(np.concatenate([[0], starts[beside] + table[beside, 0]]))
        limits = np.concatenate([starts[beside], [units]])
        fitting = np.flatnonzero(limits - ends >= size)
        if not len(fitting):
            return None
        starts[number], is_placed[number] = ends[fitting[0]], True
    return starts.tolist()
