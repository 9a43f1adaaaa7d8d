"""`Pace`: how fast a run has been going lately.

Rule: the first call of a run compiles, so it counts as the start and never as work.
"""

from __future__ import annotations

import collections

WINDOW_S = 10.0
"""How far back the pace looks: long enough to be calm, short enough to follow a machine that gets busy."""


class Pace:
    """Steps per second over the last seconds.

    Example:
        >>> pace = Pace()
        >>> for now_s, steps in [(20.0, 1), (21.0, 101), (22.0, 201)]:
        ...     pace.note(now_s, steps)
        >>> pace.steps_per_s
        100.0
    """

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._seen: collections.deque[tuple[float, int]] = collections.deque()

    def note(self, now_s: float, steps: int) -> None:
        """Take down that `steps` steps of the whole run were done at `now_s`; a note out of order is dropped."""
        if self._seen and (steps <= self._seen[-1][1] or now_s <= self._seen[-1][0]):
            return
        self._seen.append((now_s, steps))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second, or None before two calls have ended."""
        if len(self._seen) < 2:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s)
