"""Measure how long the device was idle because its next batch was not ready.

Idea: the host makes the next batches while the device runs; that time costs nothing. An epoch gets longer only by the
time that the host spends on batches while the device is idle. So each batch is timed, and the device is polled before
and after it. A poll costs a microsecond and does not block.

Rule: measuring changes neither the batches nor the points where the host waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from anytpu.engine.executable import is_ready
from anytpu.program.program import Tree

MIN_SHARE = 1 / 3
MIN_WAIT_S = 0.1
"""An epoch is input-bound if it waited for more than this share of its time, and for more than this many seconds."""


class InputClock:
    """Measures the input wait of one epoch at a time.

    Args:
        newest: returns the results of the newest call: arrays, perhaps still being computed.
        now: returns the time in seconds.

    Attributes:
        waited_s: seconds that the device waited for batches so far, in all epochs.
        notice: a line about the last epoch if it was input-bound, with `{epoch}` in place of the epoch number, or None.
    """

    def __init__(self, newest: Callable[[], Tree], now: Callable[[], float] = time.perf_counter) -> None:
        self.notice: str | None = None
        self._newest, self._now = newest, now
        self.waited_s = self._waited_before_s = self._began_s = 0.0

    def timed(self, batches: Iterable[Tree]) -> Iterator[Tree]:
        """Yield the batches, and measure the time to make each."""
        iterator = iter(batches)
        while True:
            began_s, was_idle = self._now(), self._is_idle()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                # If the device became idle in between, half of the time is the best estimate.
                self.waited_s += (was_idle + self._is_idle()) / 2 * (self._now() - began_s)
            yield batch

    def begin_epoch(self) -> None:
        """Start an epoch."""
        self._waited_before_s, self._began_s = self.waited_s, self._now()

    def end_epoch(self) -> float:
        """End an epoch, and return the share of its time that the device waited for batches, from 0 to 1."""
        duration_s = self._now() - self._began_s
        waited_s = self.waited_s - self._waited_before_s
        share = min(waited_s / duration_s, 1.0) if duration_s > 0 else 0.0
        is_limit = share > MIN_SHARE and waited_s > MIN_WAIT_S
        self.notice = _notice(share) if is_limit else None
        return share

    def _is_idle(self) -> bool:
        return is_ready(self._newest())


def _notice(share: float) -> str:
    return (
        f"input-bound: {round(100 * share)} % of epoch {{epoch}} was spent waiting for batches, not computing. Make "
        "them ahead, tpu.pipeline.Dataset(...).prefetch(workers=2), do less in map, or pass arrays."
    )
