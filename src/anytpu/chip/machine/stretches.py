"""`Stretches`: what is touched of a memory, however much there is of it.

Idea: stretches that meet are one, so those that are left can stand in order, and what meets another is found by
halving.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

Stretch = tuple[int, int]
"""Addresses of a memory, from the first up to and without the second."""


class Stretches:
    """Stretches of one memory, joined where they meet.

    Args:
        some: the first of them.

    Example:
        >>> found = Stretches([(4, 8), (0, 2), (8, 9)])
        >>> list(found), found.meet([(2, 4)]), found.meet([(2, 5)])
        ([(0, 2), (4, 9)], False, True)
    """

    def __init__(self, some: Iterable[Stretch] = ()):
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.add(some)

    def __iter__(self) -> Iterator[Stretch]:
        return zip(self._starts, self._stops, strict=True)

    def add(self, some: Iterable[Stretch]) -> None:
        """Take more stretches; an empty one changes nothing."""
        for start, stop in some:
            if start >= stop:
                continue
            first, last = bisect.bisect_left(self._stops, start), bisect.bisect_right(self._starts, stop)
            if first < last:
                start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
            self._starts[first:last] = [start]
            self._stops[first:last] = [stop]

    def meet(self, others: Iterable[Stretch]) -> bool:
        """Tell whether any address is in these stretches and in others."""
        for start, stop in others:
            place = bisect.bisect_right(self._stops, start)
            if start < stop and place < len(self._starts) and self._starts[place] < stop:
                return True
        return False
