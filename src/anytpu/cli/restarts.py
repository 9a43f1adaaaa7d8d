"""`Restarts`: whether a program that ended is started again, and after which pause.

Idea: a pre-emption is not the program's fault: a signal from outside ended it. A crash is. Each has its own budget.
The pause doubles until a new checkpoint shows progress.

Rule: an end that repeats three times in a row at the same checkpoint is final: it would repeat forever. A run that
stopped to be started again is exempt.
"""

from __future__ import annotations

import dataclasses
import signal

from anytpu._restarts import LOST_STATUS, STOPPED_STATUS

MAX_EQUAL = 3
"""Number of equal ends at one checkpoint after which a program is not restarted."""
MAX_PAUSE_S = 60.0

_MEANINGS = {STOPPED_STATUS: "stopped to be started again", LOST_STATUS: "ended because of another host"}
_FROM_OUTSIDE = {-signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT, -signal.SIGHUP}


@dataclasses.dataclass(frozen=True)
class End:
    """The end of one process of a program.

    Attributes:
        status: exit status, or the negative number of the signal that killed it.
        step: step of the newest checkpoint, or None if the program reported none.
    """

    status: int
    step: int | None = None

    @property
    def is_preemption(self) -> bool:
        """Whether the process stopped to be started again, or something outside of it ended it."""
        return self.status in (STOPPED_STATUS, LOST_STATUS) or self.status in _FROM_OUTSIDE

    def __str__(self) -> str:
        reason = f"exit status {self.status}" if self.status >= 0 else f"killed by {signal.Signals(-self.status).name}"
        reason = f"{_MEANINGS[self.status]} ({reason})" if self.status in _MEANINGS else reason
        return reason if self.step is None else f"{reason}, newest checkpoint: step {self.step}"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The decision after an end.

    Attributes:
        reason: one sentence for the user.
        pause_s: seconds until the next start; None: the program is not started again.
    """

    reason: str
    pause_s: float | None = None


class Restarts:
    """Counts the ends of a program.

    Args:
        max_crashes: restarts after crashes.
        max_preemptions: restarts after pre-emptions.

    Example:
        >>> restarts = Restarts(max_crashes=1, max_preemptions=100)
        >>> restarts.after(End(1, step=900)).reason
        'exit status 1, newest checkpoint: step 900. Restart 1 of 1 after a crash, in 1 s'
        >>> restarts.after(End(1, step=950)).reason
        'exit status 1, newest checkpoint: step 950. The 1 restarts of --max-restarts are used up'
    """

    def __init__(self, max_crashes: int, max_preemptions: int) -> None:
        self._limits = {False: max_crashes, True: max_preemptions}
        self._counts = {False: 0, True: 0}
        self._pause_s = 1.0
        self._last: End | None = None
        self._equal = 0

    def after(self, end: End) -> Verdict:
        """Count an end that was not wished for, and return the decision."""
        last, self._last = self._last, end
        self._equal = self._equal + 1 if end == last else 1
        if self._equal == MAX_EQUAL and end.status != STOPPED_STATUS:
            return Verdict(f"{end}. This is the third time, without a new checkpoint between, so it would repeat")
        is_preemption = end.is_preemption
        count, limit = self._counts[is_preemption], self._limits[is_preemption]
        option, kind = ("--max-preemptions", "pre-emption") if is_preemption else ("--max-restarts", "crash")
        if count == limit:
            return Verdict(f"{end}. The {limit} restarts of {option} are used up")
        self._counts[is_preemption] = count + 1
        has_progress = last is None or end.step != last.step
        self._pause_s = 1.0 if has_progress else min(2 * self._pause_s, MAX_PAUSE_S)
        return Verdict(f"{end}. Restart {count + 1} of {limit} after a {kind}, in {self._pause_s:g} s", self._pause_s)
