"""`StepRate`: the recent speed of a run.

Rule: the first call of a run compiles, so it marks the start and is not counted as work.
"""

from __future__ import annotations

import collections

WINDOW_S = 10.0
"""Averaging window: long enough to be stable, short enough to follow a machine that becomes busy."""


class StepRate:
    """Steps per second over the last `WINDOW_S` seconds.

    Example:
        >>> rate = StepRate()
        >>> for now_s, steps in [(20.0, 1), (21.0, 101), (22.0, 201)]:
        ...     rate.note(now_s, steps)
        >>> rate.steps_per_s
        100.0
    """

    def __init__(self) -> None:
        """Start without samples."""
        self._samples: collections.deque[tuple[float, int]] = collections.deque()

    def note(self, now_s: float, steps: int) -> None:
        """Record that `steps` steps of the whole run were completed at `now_s`; ignore a sample out of order."""
        if self._samples and (steps <= self._samples[-1][1] or now_s <= self._samples[-1][0]):
            return
        self._samples.append((now_s, steps))
        while len(self._samples) > 2 and now_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second, or None before two calls have ended."""
        if len(self._samples) < 2:
            return None
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s)
