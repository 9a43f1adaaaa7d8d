"""`listener_of`: who wants to know how long the calls of a program take.

Idea: how long a step takes on a real TPU or GPU is what a prediction is checked by. The loops time their calls anyway,
to choose how many steps the next one runs; whoever wants those times (the planning, on a floor above) is found by name.

Rule: only real accelerators are listened to, and only while nobody says ANYTPU_RECORD_RUNS=0. Where nobody listens a
call costs nothing more, and a listener that fails is dropped: a run never fails for its sake.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable

from anytpu import _env
from anytpu.program.program import Program
from anytpu.system.cores import Core

GROUP = "anytpu.measurements"
"""The group of entry points in which listeners are found: each is called with a Program and the cores that run it, and
returns a function that is told of each call that was timed, its steps and its seconds; or None."""

ENOUGH_CALLS = 64
"""A loop that would not time its calls by itself times so many for a listener."""

_LOG = logging.getLogger("anytpu")


class Listener:
    """Passes calls on to who wants to know of them, until that fails.

    Args:
        tell: is told the steps of a call, and its seconds.
    """

    def __init__(self, tell: Callable[[int, float], None]) -> None:
        self._tell: Callable[[int, float], None] | None = tell
        self._calls = 0

    @property
    def is_satisfied(self) -> bool:
        """Whether no call has to be timed for its sake alone."""
        return self._tell is None or self._calls >= ENOUGH_CALLS

    def __call__(self, steps: int, duration_s: float) -> None:
        """Tell of a call."""
        self._calls += 1
        if self._tell is None:
            return
        try:
            self._tell(steps, duration_s)
        except Exception as error:  # No disk, no home, no permission: the run goes on.
            _LOG.info("this run is not recorded any further: %s", error)
            self._tell = None


def listener_of(program: Program, cores: tuple[Core, ...]) -> Listener | None:
    """Return who wants to know how long calls of a program take, or None.

    Raises:
        SettingError: ANYTPU_RECORD_RUNS has a value that it cannot have.
    """
    wanted = _env.recorded_runs()
    is_real = all(core.platform in ("tpu", "gpu") and not core.virtual for core in cores)
    if wanted == "none" or not (is_real or wanted == "all"):
        return None
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            listener = entry.load()(program, cores)
        except Exception as error:  # Whatever it is, the run goes on without.
            _LOG.info("the runs of %s are not recorded: %s", program.name, error)
            continue
        if listener is not None:
            return Listener(listener)
    return None
