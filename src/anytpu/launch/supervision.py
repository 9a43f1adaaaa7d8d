"""`Supervision`: which signal the processes of a launch get next, and the exit status of the launch.

Idea: every event (a signal to the launcher, ends of processes, a deadline) returns the signal to send to all processes
that still run, or None.

1. The first process that fails ends the launch: the others get SIGTERM, and SIGKILL `GRACE_S` later. They cannot
   continue without it, nor save together.
2. A process that saved its run and stopped (`STOPPED_STATUS`) agreed on that with the others: they get `SAVE_S` to end.
3. A signal to the launcher is passed on once, without a deadline, since the program may save its run. A second one
   kills.
4. A process that succeeds ends nothing: the others may still work.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence

from anytpu._restarts import STOPPED_STATUS

GRACE_S = 3.0
"""Seconds from SIGTERM to SIGKILL after a failure. A process that waits for the failed one ignores SIGTERM."""
SAVE_S = 30.0
"""Seconds that the others have to end after one has saved its run and stopped."""


@dataclasses.dataclass(frozen=True)
class ProcessEnd:
    """The end of one process.

    Attributes:
        index: index of the process.
        status: exit status, or the negative number of the signal that killed it.
    """

    index: int
    status: int

    def __str__(self) -> str:
        if self.status == STOPPED_STATUS:
            return f"saved its run and stopped, exit status {self.status}"
        if self.status >= 0:
            return f"failed with exit status {self.status}"
        return f"was killed by {_signal_name(-self.status)}"


class Supervision:
    """The state of a launch.

    Args:
        processes: number of processes that were started.

    Attributes:
        running: indices of the processes that have not ended.
        first: the end that ended the launch: the first that was not a success; None before.
        deadline_s: time at which `at_deadline` is due, or None.
        killed: indices of the processes that a second signal to the launcher killed.

    Example:
        >>> supervision = Supervision(processes=3)
        >>> supervision.after_ends([ProcessEnd(0, 0)], now_s=10.0)
        >>> supervision.after_ends([ProcessEnd(2, 1)], now_s=20.0)
        <Signals.SIGTERM: 15>
        >>> supervision.running, str(supervision.first), supervision.deadline_s
        ({1}, 'failed with exit status 1', 23.0)
        >>> supervision.at_deadline(now_s=23.0)
        <Signals.SIGKILL: 9>
    """

    def __init__(self, processes: int) -> None:
        self.running = set(range(processes))
        self.first: ProcessEnd | None = None
        self.deadline_s: float | None = None
        self.killed: tuple[int, ...] = ()
        self._passed_on: int | None = None
        self._next: tuple[int, ...] = ()

    def after_signal(self, number: int) -> int:
        """Return what follows a signal to the launcher."""
        if self._passed_on is None and self.first is None:
            self._passed_on = number
            return number
        if self.first is None:
            self.killed = tuple(sorted(self.running))
        return signal.SIGKILL

    def after_ends(self, ends: Sequence[ProcessEnd], now_s: float) -> int | None:
        """Return what follows the ends of processes that were noticed together."""
        self.running -= {end.index for end in ends}
        unsuccessful = [end for end in ends if end.status != 0]
        if self.first is not None or not unsuccessful:
            return None
        self.first = min(unsuccessful, key=_order)
        if self.first.status == STOPPED_STATUS or self._passed_on is not None:
            # 1. The others stop too: a further signal would end their saving.
            self.deadline_s = now_s + SAVE_S
            self._next = (signal.SIGKILL,) if self._passed_on is not None else (signal.SIGTERM, signal.SIGKILL)
            return None
        # 2. A failure.
        self.deadline_s = now_s + GRACE_S
        self._next = (signal.SIGKILL,)
        return signal.SIGTERM

    def at_deadline(self, now_s: float) -> int:
        """Return what follows when processes still run at `deadline_s`."""
        number, *left = self._next
        self._next = tuple(left)
        self.deadline_s = now_s + GRACE_S if left else None
        return number

    @property
    def failure(self) -> ProcessEnd | None:
        """The end to report as an error; None for a success, and for an end that a signal to the launcher asked for."""
        if self.first is None or self._passed_on is None:
            return self.first
        if self.first.status == -signal.SIGKILL and self.first.index in self.killed:
            return None
        asked_for = (STOPPED_STATUS, -self._passed_on, 128 + self._passed_on)
        return None if self.first.status in asked_for else self.first

    @property
    def has_failed(self) -> bool:
        """Whether a process has failed, so that what the others print on stderr is a consequence."""
        return self.failure is not None and self.failure.status != STOPPED_STATUS

    @property
    def exit_status(self) -> int:
        """The exit status of the launch: that of `first`, as a shell reports it; 0 for a success."""
        if self.first is None:
            return 0
        return self.first.status if self.first.status >= 0 else 128 - self.first.status


def _order(end: ProcessEnd) -> tuple[int, int]:
    """Return the sort key of ends that were noticed together: causes before consequences.

    JAX aborts a process whose peer is gone, and an exception may come from a lost connection. Other signals come from
    outside, or from a fault of the process itself.
    """
    if end.status < 0:
        return (2 if end.status == -signal.SIGABRT else 0, end.index)
    return (3 if end.status == STOPPED_STATUS else 1, end.index)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # A real-time signal.
        return f"signal {number}"
