"""How many steps the next call should run.

Idea: a call costs a fixed time on the host, so more steps in a call are faster; but between calls somebody wants to
see progress, and Ctrl-C waits for the call that runs. Half a second is the most that a call may last; a quarter is
aimed at, since a step may take longer in this call than it did in the one before.

Rule: how many steps a call runs never changes what they compute, so this may follow the clock.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax

from anytpu.engine.backend import Backend
from anytpu.engine.measurements import Listener
from anytpu.program.program import Tree

_TARGET_S = 0.25
_GROWTH = 8


@dataclasses.dataclass
class Pace:
    """Chooses the steps of each call.

    Args:
        fixed: the number that the user chose, or None to choose by the clock.

    Attributes:
        step_s: seconds that a step took in the last measured call; 0 before the first.
        steps: the most steps that a measured call ran.
    """

    fixed: int | None = None
    step_s: float = 0.0
    steps: int = 0

    @property
    def is_measuring(self) -> bool:
        """True while the next call has to be waited for, to learn how long a step takes."""
        return self.fixed is None and self.step_s == 0.0

    def next_steps(self, most: int) -> int:
        """Return the steps of the next call.

        Args:
            most: steps that are left before a boundary that no call may cross; at least 1.
        """
        if self.fixed is not None:
            return min(self.fixed, most)
        if self.step_s == 0.0:
            return 1
        return max(1, min(most, int(_TARGET_S / self.step_s), self.steps * _GROWTH))

    def measured(self, steps: int, duration_s: float, is_exact: bool = True) -> None:
        """Learn from a call that ran `steps` steps in `duration_s` seconds, or, when not `is_exact`, in less."""
        self.steps = max(self.steps, steps)
        step_s = max(duration_s / steps, 1e-7)
        self.step_s = step_s if is_exact or self.step_s == 0.0 else min(step_s, self.step_s)


class Watch:
    """Learns how long calls take, while the host goes on.

    The host waits for call n - 1 before it starts call n + 1, never for the call that runs.
    """

    def __init__(self) -> None:
        self._ran: tuple[Pace, int, float, Tree, Listener | None] | None = None

    def started(self, pace: Pace, steps: int, began_s: float, results: Tree, listener: Listener | None = None) -> None:
        """Note a call that was just started.

        Args:
            pace: what learns from it.
            steps: how many steps it runs.
            began_s: when it began, by `time.perf_counter`.
            results: handles of what it returned.
            listener: who else wants to know how long it took.
        """
        self._ran = pace, steps, began_s, results, listener

    def wait(self, backend: Backend) -> None:
        """Wait for the call that was noted last, if it is not known yet how long it took."""
        if self._ran is None:
            return
        pace, steps, began_s, results, listener = self._ran
        self._ran = None
        arrays = jax.tree.leaves(backend.get(results))
        waits = not all(is_ready(one) for one in arrays)
        jax.block_until_ready(arrays)
        duration_s = time.perf_counter() - began_s
        pace.measured(steps, duration_s, is_exact=waits)
        if listener is not None and waits:
            listener(steps, duration_s)


def is_ready(array: Any) -> bool:
    """Say whether an array is computed; one that was fetched from a backend of another process is."""
    return not isinstance(array, jax.Array) or array.is_ready()  # pyright: ignore[reportAttributeAccessIssue]
