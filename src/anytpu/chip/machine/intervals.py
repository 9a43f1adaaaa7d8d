"""`IntervalSet`: a set of memory addresses, as sorted disjoint intervals.

Idea: adjacent and overlapping intervals are merged. So the starts and the stops are both sorted, and a binary search
finds an overlap.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

Interval = tuple[int, int]
"""Addresses of a memory: (start, stop), `stop` excluded."""


class IntervalSet:
    """A set of addresses of one memory.

    Args:
        intervals: the initial intervals.

    Example:
        >>> found = IntervalSet([(4, 8), (0, 2), (8, 9)])
        >>> list(found), found.meet([(2, 4)]), found.meet([(2, 5)])
        ([(0, 2), (4, 9)], False, True)
    """

    def __init__(self, intervals: Iterable[Interval] = ()):
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.add(intervals)

    def __iter__(self) -> Iterator[Interval]:
        return zip(self._starts, self._stops, strict=True)

    def add(self, intervals: Iterable[Interval]) -> None:
        """Add intervals; an empty interval changes nothing."""
        for start, stop in intervals:
            if start >= stop:
                continue
            first, last = bisect.bisect_left(self._stops, start), bisect.bisect_right(self._starts, stop)
            if first < last:
                start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
            self._starts[first:last] = [start]
            self._stops[first:last] = [stop]

    def meet(self, others: Iterable[Interval]) -> bool:
        """Return whether any address is both in this set and in one of the intervals."""
        for start, stop in others:
            index = bisect.bisect_right(self._stops, start)
            if start < stop and index < len(self._starts) and self._starts[index] < stop:
                return True
        return False
