"""The choice of the number of steps in the next call.

Idea: each call has a fixed cost on the host, so more steps per call are faster. But progress appears only between
calls, and Ctrl-C waits for the one or two that run. A call should last at most half a second. The target is a quarter,
because a step may take longer in this call than in the previous one.

Rule: the number of steps in a call never changes the results, so it may depend on the clock. Several hosts must make
the same choice, so the clock of host 0 decides.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from anytpu.engine.backend import Backend
from anytpu.errors import BackendError
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
    """Measures the duration of calls, while the host prepares and starts the next ones."""

    def __init__(self) -> None:
        self._calls: deque[tuple[CallPace, int, float, Tree]] = deque()
        self._ended_s = 0.0

    def started(self, pace: CallPace, steps: int, began_s: float, results: Tree) -> None:
        """Record the start of a call.

        Args:
            pace: pace that receives the measured duration.
            steps: number of steps in the call.
            began_s: start time in seconds, from `time.perf_counter`.
            results: handles of the results.
        """
        self._calls.append((pace, steps, began_s, results))

    def wait(self, backend: Backend, running: int = 0) -> None:
        """Wait until at most `running` of the started calls still run, and report the durations of the others.

        Raises:
            BackendError: a call failed, and with it those that were started after it.
        """
        while len(self._calls) > running:
            pace, steps, began_s, results = self._calls.popleft()
            # A call that ended before this point took less time than the clock shows: the duration is an upper bound.
            waits = not backend.is_ready(results)
            try:
                backend.wait(results)
            except BackendError:
                self._calls.clear()
                raise
            self._report(backend, pace, steps, began_s, waits)

    def read(self, backend: Backend, read: Callable[[], Any]) -> None:
        """Call `read`, which waits for the newest call, and report the started calls of its pace as one."""
        # Time may have passed between the calls if an earlier one has ended: then the duration is an upper bound.
        waits = bool(self._calls) and not any(backend.is_ready(call[3]) for call in self._calls)
        calls, self._calls = self._calls, deque()
        read()
        if calls:
            same = [call for call in calls if call[0] is calls[-1][0]]
            self._report(backend, same[0][0], sum(call[1] for call in same), same[0][2], waits)

    def _report(self, backend: Backend, pace: CallPace, steps: int, began_s: float, waits: bool) -> None:
        # A call begins when it is started, or when the one before it ends.
        began_s, self._ended_s = max(began_s, self._ended_s), time.perf_counter()
        if pace.fixed is None:
            agreed = backend.hosts.agree_on_duration(self._ended_s - began_s, waits)
            pace.measured(steps, agreed.duration_s, is_exact=agreed.is_exact)
