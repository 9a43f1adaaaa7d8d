"""How long the device stood idle because its next batch was not there yet.

Idea: while the device runs, the host makes the next batches; that time costs nothing. Only what the host spends on
batches while the device has nothing to do makes an epoch longer. So each batch is timed, and before and after it the
device is asked whether it has finished: that costs a microsecond and waits for nothing.

Rule: measuring changes neither the batches nor when the device is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import jax

from anytpu.engine.pace import is_ready
from anytpu.program.program import Tree

LEAST_SHARE = 1 / 3
LEAST_WAIT_S = 0.1
"""The input was the limit of an epoch that waited for more than this share of it, and for longer than this."""


class InputClock:
    """Measures epochs, one after the other.

    Args:
        newest: returns what the newest call returns: arrays, perhaps still being computed.
        now: returns the time in seconds.

    Attributes:
        notice: what there is to say about the epoch that ended last, with `{epoch}` for its number, or None.
    """

    def __init__(self, newest: Callable[[], Tree], now: Callable[[], float] = time.perf_counter) -> None:
        self.notice: str | None = None
        self._newest, self._now = newest, now
        self._waited_s = self._began_s = 0.0

    def timed(self, batches: Iterable[Tree]) -> Iterator[Tree]:
        """Yield the batches, and time how long each takes."""
        iterator = iter(batches)
        while True:
            began_s, was_idle = self._now(), self._is_idle()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                # Where the device finished in between, half of the time is the best guess.
                self._waited_s += (was_idle + self._is_idle()) / 2 * (self._now() - began_s)
            yield batch

    def begin_epoch(self) -> None:
        """Start an epoch."""
        self._waited_s, self._began_s = 0.0, self._now()

    def end_epoch(self) -> float:
        """End an epoch, and return the share of its time that the device waited for batches, 0 to 1."""
        duration_s = self._now() - self._began_s
        share = min(self._waited_s / duration_s, 1.0) if duration_s > 0 else 0.0
        is_limit = share > LEAST_SHARE and self._waited_s > LEAST_WAIT_S
        self.notice = _notice(share) if is_limit else None
        return share

    def _is_idle(self) -> bool:
        return all(is_ready(result) for result in jax.tree.leaves(self._newest()))


def _notice(share: float) -> str:
    return (
        f"input-bound: {round(100 * share)} % of epoch {{epoch}} was spent waiting for batches, not computing. Make "
        "them ahead, tpu.pipeline.Dataset(...).prefetch(workers=2), do less in map, or pass arrays."
    )
