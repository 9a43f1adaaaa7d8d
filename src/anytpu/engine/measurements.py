"""`listener_of`: the receiver of the measured durations of a program's calls.

Idea: measured step times on a real TPU or GPU check the predictions. The loops time their calls anyway, to choose the
step count of the next call. The receiver is the recorder of `planning`, a floor above; it is loaded by name.

Rule: only calls on real accelerators are reported, unless ANYTPU_RECORD_RUNS says otherwise. Without a listener a call
has no extra cost. A listener that fails is dropped, so it never ends a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from anytpu import _by_name, _env
from anytpu.program.program import Program
from anytpu.system.cores import Core

ENOUGH_CALLS = 64
"""Number of calls that a loop of fixed step count times for a listener."""

_LOG = logging.getLogger("anytpu")


class Listener:
    """Reports timed calls to a function, until that function raises.

    Args:
        report: function `report(steps, duration_s)`.
    """

    def __init__(self, report: Callable[[int, float], None]) -> None:
        self._report: Callable[[int, float], None] | None = report
        self._calls = 0

    @property
    def is_satisfied(self) -> bool:
        """Whether the listener needs no further timed calls."""
        return self._report is None or self._calls >= ENOUGH_CALLS

    def __call__(self, steps: int, duration_s: float) -> None:
        """Report a call of `steps` steps that took `duration_s` seconds."""
        self._calls += 1
        if self._report is None:
            return
        try:
            self._report(steps, duration_s)
        except Exception as error:  # A full disk or a missing permission must not end the run.
            _LOG.info("the recording of this run stops: %s", error)
            self._report = None


def listener_of(program: Program, cores: tuple[Core, ...]) -> Listener | None:
    """Return the listener for a program on these cores, or None.

    Raises:
        SettingError: ANYTPU_RECORD_RUNS has an invalid value.
    """
    recorded = _env.recorded_runs()
    is_real = all(core.platform in ("tpu", "gpu") and not core.virtual for core in cores)
    if recorded == "none" or not (is_real or recorded == "all"):
        return None
    try:
        return Listener(_by_name.load("run recorder")(program, cores))
    except Exception as error:  # A broken recorder must not end the run.
        _LOG.info("the runs of %s are not recorded: %s", program.name, error)
        return None
