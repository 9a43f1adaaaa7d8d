"""The choice of the number of steps in the next call.

Idea: each call has a fixed cost on the host, so more steps per call are faster. But progress appears only between
calls, and Ctrl-C waits for the running call. A call should last at most half a second. The target is a quarter, because
a step may take longer in this call than in the previous one.

Rule: the number of steps in a call never changes the results, so it may depend on the clock. Several hosts must make
the same choice, so the clock of host 0 decides.
"""

from __future__ import annotations

import dataclasses
import time

from anytpu.engine.backend import Backend
from anytpu.program.program import Tree

_TARGET_S = 0.25
_GROWTH = 8


@dataclasses.dataclass
class CallPace:
    """Chooses the number of steps of each call.

    Attributes:
        fixed: number of steps that the user chose; None chooses by the clock.
        step_s: seconds per step in the last measured call; 0 before the first.
        steps: maximum number of steps in a measured call so far.
    """

    fixed: int | None = None
    step_s: float = 0.0
    steps: int = 0

    @property
    def is_measuring(self) -> bool:
        """Whether the host must wait for the next call, to measure the first step."""
        return self.fixed is None and self.step_s == 0.0

    def next_steps(self, max_steps: int) -> int:
        """Return the number of steps of the next call.

        Args:
            max_steps: number of steps before the next boundary that no call may cross; at least 1.
        """
        if self.fixed is not None:
            return min(self.fixed, max_steps)
        if self.step_s == 0.0:
            return 1
        return max(1, min(max_steps, int(_TARGET_S / self.step_s), self.steps * _GROWTH))

    def measured(self, steps: int, duration_s: float, is_exact: bool = True) -> None:
        """Record a call of `steps` steps.

        Args:
            steps: number of steps that ran.
            duration_s: duration of the call in seconds.
            is_exact: False if `duration_s` is only an upper bound, because the call had ended before the host looked.
        """
        self.steps = max(self.steps, steps)
        step_s = max(duration_s / steps, 1e-7)
        self.step_s = step_s if is_exact or self.step_s == 0.0 else min(step_s, self.step_s)


class CallWatch:
    """Measures the duration of calls, while the host prepares the next one.

    The host waits for each call just before it starts the next one, so it prepares batches while a call runs.
    """

    def __init__(self) -> None:
        self._call: tuple[CallPace, int, float, Tree] | None = None

    def started(self, pace: CallPace, steps: int, began_s: float, results: Tree) -> None:
        """Record the start of a call.

        Args:
            pace: pace that receives the measured duration.
            steps: number of steps in the call.
            began_s: start time in seconds, from `time.perf_counter`.
            results: handles of the results.
        """
        self._call = pace, steps, began_s, results

    def wait(self, backend: Backend) -> None:
        """Wait for the last started call and report its duration, unless `wait` has already done so."""
        if self._call is None:
            return
        pace, steps, began_s, results = self._call
        self._call = None
        # A call that ended before this point took less time than the clock shows: the duration is an upper bound.
        waits = not backend.is_ready(results)
        backend.wait(results)
        duration_s = time.perf_counter() - began_s
        if pace.fixed is None:
            agreed = backend.hosts.agree_on_duration(duration_s, waits)
            pace.measured(steps, agreed.duration_s, is_exact=agreed.is_exact)
