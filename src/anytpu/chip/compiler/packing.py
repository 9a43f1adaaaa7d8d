"""`pack`: addresses for stretches of memory whose times of use are all known, the largest first.

Idea: who gives out addresses as time goes on may find the room in pieces. Who knows the whole day puts the largest
things in first, each as low as it can go beside those that are there at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Lifetime(NamedTuple):
    """`units` of memory that are wanted from job `first` to job `last`."""

    units: int
    first: int
    last: int


def pack(lifetimes: Sequence[Lifetime], units: int) -> list[int] | None:
    """Return an address for each stretch, such that none that are wanted at one time overlap; None: none was found.

    Args:
        lifetimes: of the stretches.
        units: of the memory.

    Example:
        >>> pack([Lifetime(4, 0, 1), Lifetime(6, 1, 2), Lifetime(4, 2, 3)], 10)
        [6, 0, 6]
    """
    table = np.array(lifetimes, np.int64).reshape(-1, 3)
    starts = np.zeros(len(table), np.int64)
    is_placed = np.zeros(len(table), bool)
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
