"""`SkippedSteps`: counts the steps that `on_nan="skip"` skipped, on the device until somebody needs the number.

Idea: a call returns a handle of its number of skipped steps. The handles are read together, every 100 steps and at the
end of an epoch, so that no call waits for the one before.
"""

from __future__ import annotations

import logging
from typing import Any

from anytpu.engine.backend import Backend
from anytpu.train import checks

LOG = logging.getLogger("anytpu")

MAX_SKIPPED = 100
"""Number of steps in a row after which a run in which each step was skipped ends."""


class SkippedSteps:
    """Counts skipped steps of one fit.

    Args:
        backend: the backend of the handles.
        hint: text after the error.
    """

    def __init__(self, backend: Backend, hint: str = "") -> None:
        self._backend, self._hint = backend, hint
        self._unread: list[Any] = []
        self._unread_steps = 0
        self._epoch_skips = self._epoch_steps = self._in_a_row = 0

    def add(self, skipped: Any, steps: int, epoch: int) -> None:
        """Count a call.

        Args:
            skipped: handle of the number of its skipped steps.
            steps: number of its steps.
            epoch: number of the epoch, from 1.

        Raises:
            NaNLossError: all of the last 100 steps were skipped.
        """
        # The handle of this call is not read yet: it may still run.
        if self._unread_steps >= MAX_SKIPPED:
            self._read(epoch)
        self._unread.append(skipped)
        self._unread_steps += steps
        self._epoch_steps += steps

    def end_epoch(self, epoch: int) -> None:
        """Log how many steps of the epoch were skipped."""
        self._read(epoch)
        skips, steps, self._epoch_skips, self._epoch_steps = self._epoch_skips, self._epoch_steps, 0, 0
        if skips:
            LOG.warning(
                "%d of the %d steps of epoch %d were skipped: the loss or a new weight was not finite",
                skips,
                steps,
                epoch,
            )

    def _read(self, epoch: int) -> None:
        skips = sum(int(count) for count in self._backend.get(self._unread))
        is_each = skips == self._unread_steps
        self._in_a_row = self._in_a_row + skips if is_each else 0
        self._epoch_skips += skips
        self._unread, self._unread_steps = [], 0
        if self._in_a_row >= MAX_SKIPPED:
            checks.refuse_skips(self._in_a_row, epoch, self._hint)
