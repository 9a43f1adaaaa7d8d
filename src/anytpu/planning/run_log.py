"""`RunLog`: records the step times of one run.

Idea: the engine reports each timed call. The step time is the median over many calls. The first calls, calls slowed by
other load and calls of a few steps do not move it.

Rule: a line is written after some calls, whenever their number has doubled, and at the end of the process. So writes
are few, and a killed process has left its last line.
"""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import importlib.metadata
import statistics
import uuid
import weakref
from collections import deque

import jax

from anytpu.planning import runs
from anytpu.planning.jobs.job import batch_rows
from anytpu.planning.runs import MeasuredRun
from anytpu.program.program import Program
from anytpu.system.chips import CHIPS, chip_of_kind
from anytpu.system.cores import Core
from anytpu.system.topologies import slice_sizes

FIRST_CALLS = 8
"""Number of calls before a run is first written."""

_KEPT_CALLS = 512
_MIN_CALLS = 3
_PACKAGES = ("anytpu", "jax", "jaxlib", "keras", "libtpu")


class RunLog:
    """The calls of one run of one program.

    Args:
        run: the run, as known before its first call.
    """

    def __init__(self, run: MeasuredRun) -> None:
        self._run = run
        self._calls: deque[tuple[int, float]] = deque(maxlen=_KEPT_CALLS)
        self._count = 0
        self._written = 0
        self._next = FIRST_CALLS

    def __call__(self, steps: int, duration_s: float) -> None:
        """Record a call of so many steps, and write the run if it is due.

        Raises:
            OSError: it cannot be written.
        """
        self._calls.append((steps, duration_s / steps))
        self._count += 1
        if self._count >= self._next:
            self._next = 2 * self._count
            self.write()

    def write(self) -> None:
        """Write the run so far, if it has new calls."""
        if self._count >= max(_MIN_CALLS, self._written + 1):
            runs.append(runs.runs_file(), self.to_run())
            self._written = self._count

    def to_run(self) -> MeasuredRun:
        """Return the run so far: the median over the calls with at least half of the maximum number of steps."""
        most = max(steps for steps, _ in self._calls)
        step_s = statistics.median(duration_s for steps, duration_s in self._calls if 2 * steps >= most)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return dataclasses.replace(self._run, time=now, steps_per_execution=most, step_s=step_s, calls=self._count)


def start(program: Program, cores: tuple[Core, ...]) -> RunLog:
    """Return the recorder for the calls of a program on some cores; the engine loads it by name."""
    kind = _device_kind(cores[0])
    chip = chip_of_kind(kind)
    name = chip.name if chip else kind
    run = MeasuredRun(
        run=uuid.uuid4().hex,
        time="",
        name=program.name,
        program=runs.digest(program),
        chip=name,
        system=_system(chip.name, len(cores)) if chip else ("gpu" if cores[0].platform == "gpu" else name),
        devices=len(cores),
        batch_size=batch_rows(program),
        steps_per_execution=0,
        step_s=0.0,
        calls=0,
        versions=_versions(),
    )
    log = RunLog(run)
    _OPEN.add(log)
    return log


_OPEN: weakref.WeakSet[RunLog] = weakref.WeakSet()


@atexit.register
def _write_at_exit() -> None:
    for log in list(_OPEN):
        try:
            log.write()
        except OSError:
            continue  # No disk, no home: then this run is not kept.


def _device_kind(core: Core) -> str:
    """Return JAX's name of a core's device; "virtual core" for a core of the CPU."""
    if core.virtual:
        return "virtual core"
    devices = jax.devices(core.platform)
    return next((device.device_kind for device in devices if device.id == core.device_id), devices[0].device_kind)


def _system(chip: str, devices: int) -> str:
    """Return the slice with so many devices."""
    replicas = CHIPS[chip].replicas
    sizes = slice_sizes(chip)
    numbers = [number for number, (x, y, z) in sizes.items() if x * y * z * replicas == devices]
    return f"{chip}-{numbers[0]}" if numbers else f"{devices} x {chip}"


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
