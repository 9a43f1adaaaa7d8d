"""`Supervision`: a state machine for the processes of a launch: the signals to send, and the exit status.

There are three kinds of event: a signal to the launcher, ends of processes, and a deadline. Each has a method. The
method returns the signal to send to all processes that still run, or None. The rules are:

1. Failure: the first process that fails ends the launch. The others get SIGTERM, and SIGKILL `GRACE_S` later. Without
   the failed process they can neither continue nor save the run.
2. Save and stop: a process exits with `STOPPED_STATUS` after all processes agreed to save the run. The others have
   `SAVE_S` to exit. Then they get SIGTERM, and SIGKILL `GRACE_S` later.
3. Signal to the launcher: the first signal is forwarded, without a deadline, because the program may save its run. The
   first process that then exits without success starts a deadline of `SAVE_S`, and SIGKILL follows. A second signal, or
   any signal after rule 1 or 2 applied, sends SIGKILL at once.
4. Success: a process that exits with status 0 changes nothing, because the others may still work.
5. Consequence: a process exits with `LOST_STATUS` because another one failed or is frozen. The others have `GRACE_S` to
   exit; one that fails is the cause. Then they get SIGKILL, because a frozen process does not act on SIGTERM.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence

from anytpu._restarts import LOST_STATUS, STOPPED_STATUS

GRACE_S = 3.0
"""Seconds from SIGTERM to SIGKILL. SIGKILL is needed: a process that waits for a failed process ignores SIGTERM."""
SAVE_S = 30.0
"""Seconds for the other processes to exit after the first process saved the run and stopped."""


@dataclasses.dataclass(frozen=True)
class ProcessEnd:
    """The end of a process.

    Attributes:
        index: index of the process in the launch, from 0.
        status: exit status, 0 to 255, or the negative number of the signal that killed it.
    """

    index: int
    status: int

    def __str__(self) -> str:
        if self.status == STOPPED_STATUS:
            return f"stopped to be started again, exit status {self.status}"
        if self.status == LOST_STATUS:
            return f"ended because of another process, exit status {self.status}"
        if self.status >= 0:
            return f"failed with exit status {self.status}"
        return f"was killed by {_signal_name(-self.status)}"


class Supervision:
    """The state of a launch.

    Args:
        processes: number of started processes.

    Attributes:
        running: indices of the processes that have not ended.
        first: the first unsuccessful end, which ends the launch; None before it.
        deadline_s: time at which to call `at_deadline`, on the clock of `now_s` in seconds; None without a deadline.
        killed: indices of the processes that ran at a second signal, if no process had failed before; they get SIGKILL.

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
        """Return the signal to send after the launcher received signal `number`: the same signal, or SIGKILL."""
        if self._passed_on is None and self.first is None:
            self._passed_on = number
            return number
        if self.first is None:
            self.killed = tuple(sorted(self.running))
        return signal.SIGKILL

    def after_ends(self, ends: Sequence[ProcessEnd], now_s: float) -> int | None:
        """Return the signal to send after some processes ended, or None.

        Args:
            ends: ends that were observed in the same poll.
            now_s: current time in seconds.
        """
        self.running -= {end.index for end in ends}
        unsuccessful = [end for end in ends if end.status != 0]
        first = min(unsuccessful, key=_order, default=None)
        if first is None or not (self.first is None or self._is_cause(first)):
            return None
        self.first = first
        if self.first.status == STOPPED_STATUS or self._passed_on is not None:
            # Rules 2 and 3: the others stop too. A signal now would interrupt their saving.
            self.deadline_s = now_s + SAVE_S
            self._next = (signal.SIGKILL,) if self._passed_on is not None else (signal.SIGTERM, signal.SIGKILL)
            return None
        self.deadline_s = now_s + GRACE_S
        self._next = (signal.SIGKILL,)
        # Rule 5 or rule 1.
        return None if self.first.status == LOST_STATUS else signal.SIGTERM

    def _is_cause(self, end: ProcessEnd) -> bool:
        """Return whether an end is the cause of the first one, which is a consequence, and not that of a signal."""
        is_consequence = self.first is not None and self.first.status == LOST_STATUS and bool(self._next)
        return is_consequence and end.status not in (LOST_STATUS, STOPPED_STATUS)

    def at_deadline(self, now_s: float) -> int:
        """Return the signal to send at `deadline_s`, if processes still run; set the next deadline."""
        number, *left = self._next
        self._next = tuple(left)
        self.deadline_s = now_s + GRACE_S if left else None
        return number

    @property
    def failure(self) -> ProcessEnd | None:
        """The end to report as an error; None after a success, or if a signal to the launcher requested the end."""
        if self.first is None or self._passed_on is None:
            return self.first
        asked_for = [STOPPED_STATUS, LOST_STATUS, -self._passed_on, 128 + self._passed_on]
        if self.killed:
            asked_for.append(-signal.SIGKILL)
        return None if self.first.status in asked_for else self.first

    @property
    def has_failed(self) -> bool:
        """Whether a process has failed; the other processes' output on stderr is then a consequence."""
        return self.failure is not None and self.failure.status not in (STOPPED_STATUS, LOST_STATUS)

    @property
    def exit_status(self) -> int:
        """Exit status of the launch, as in a shell: the status of `first`, 128 + signal if killed, 0 for a success."""
        if self.first is None:
            return 0
        return self.first.status if self.first.status >= 0 else 128 - self.first.status


def _order(end: ProcessEnd) -> tuple[int, int]:
    """Return the sort key of ends that were observed together; causes come before consequences.

    The order is: killed by a signal other than SIGABRT, failed, aborted, ended because of another one, stopped. JAX
    aborts a process that loses a peer, and an exception may come from a lost connection. Other signals come from
    outside or from the process's own fault.
    """
    if end.status < 0:
        return (2 if end.status == -signal.SIGABRT else 0, end.index)
    return ({LOST_STATUS: 3, STOPPED_STATUS: 4}.get(end.status, 1), end.index)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # A real-time signal.
        return f"signal {number}"
