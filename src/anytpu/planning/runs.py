"""`MeasuredRun`: the measured time of a step beside its prediction, and the files of both.

Idea: past predictions show how far to trust the next one. Each run on a real TPU or GPU appends a line to a file of the
user's, and each plan appends its prediction. The two are matched by the program, the system and the batch. Two programs
that take the same arrays may compute differently, in bfloat16 or with another activation. So the identity of a program
is made of the shapes, and of the number of operations of each kind with results of each type.

Rule: the `digest` of a program is the same in every process. It does not depend on names, on the order of operations or
on source lines. It costs one more tracing of the step, once for each Program. A prediction is stored without the
settings that the run may change: the host's call is separate, and there is no wait for input. Files are only appended
to. An unreadable line is skipped, and reported once. No data leaves this machine.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from anytpu import _env
from anytpu.files.json_text import read_json
from anytpu.planning.records import StepTime
from anytpu.planning.records.stored import check_positive, record_of
from anytpu.planning.records.target import Target
from anytpu.program.jaxprs import inner_jaxprs, level_of
from anytpu.program.lowering import TRACING, one_device_step
from anytpu.program.placed import inside, placed_specs
from anytpu.program.program import Layout, Program
from anytpu.program.remembered import Remembered

HOST_CALL = "host dispatch"
"""Name of the operation that is the host's call, shared by the steps that it starts."""

_MAX_LINE = 2**20  # characters; a line has some hundreds, and one of a damaged file may be longer than the memory

_told: set[Path] = set()
_DIGESTS: Remembered[str] = Remembered()


@dataclasses.dataclass(frozen=True)
class MeasuredRun:
    """A run whose steps were timed.

    Attributes:
        run: id of the run; a later line of the same run replaces an earlier one.
        time: start time: "2026-11-21T06:00:00+00:00".
        name: the program's name: "sequential/train".
        program: identity of the program, its `digest`.
        chip: "v3"; for a GPU its device kind.
        system: the slice, "v3-8"; for a GPU "gpu".
        devices: number of devices.
        batch_size: examples of a step over all devices, or None.
        steps_per_execution: maximum number of steps in one call.
        step_s: median time of a step, seconds.
        calls: number of calls behind the median.
        versions: versions of the software, by package.
        predicted_s: predicted time of a step before the corrections of this machine, seconds; None without a
            prediction. It is found when a run is read, and not stored with it.
    """

    run: str
    time: str
    name: str
    program: str
    chip: str
    system: str
    devices: int
    batch_size: int | None
    steps_per_execution: int
    step_s: float
    calls: int
    versions: dict[str, str]
    predicted_s: float | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured time, less 1: 0.1 is a tenth too long; None without a prediction."""
        return None if self.predicted_s is None else self.predicted_s / self.step_s - 1


@dataclasses.dataclass(frozen=True)
class StoredForecast:
    """A plan's prediction for a program on a system, before the corrections of this machine.

    Attributes:
        program: identity of the program, its `digest`.
        system: the slice, "v3-8"; for a GPU "gpu".
        devices: number of devices.
        step_s: time of a step without the host's call, seconds.
        call_s: time of one call of the host, whatever number of steps it starts, seconds.
    """

    program: str
    system: str
    devices: int
    step_s: float
    call_s: float = 0.0

    def step_of(self, steps: int) -> float:
        """Return the time of a step if a call starts so many, seconds."""
        return self.step_s + self.call_s / max(steps, 1)


def digest(program: Program) -> str:
    """Return the identity of a program: the shapes and types of its state and batch, its mode, its operations.

    Raises:
        ProgramError: the step cannot be traced.

    Example:
        >>> digest(program) == digest(dataclasses.replace(program, name="another name"))
        True
    """
    with TRACING:
        return _DIGESTS.get(program) or _DIGESTS.keep(program, _digest(program))


def _digest(program: Program) -> str:
    leaves = [
        *((leaf.shape, str(leaf.dtype), "state") for leaf in jax.tree.leaves(program.state)),
        *((leaf.shape, str(leaf.dtype), _axis(layout)) for leaf, layout in program.leaves()),
    ]
    step = one_device_step(program)
    with inside(program.placement):
        # A fresh function object: JAX's cache would return the jaxpr that a backend traced under its own switches.
        traced = jax.make_jaxpr(lambda state, batch: step(state, batch))(*placed_specs(program))
    # Counts, not a list: neither the order of operations nor names nor source lines are part of the identity.
    counts = sorted(collections.Counter(_operations(traced)).items())
    text = json.dumps([program.mode, program.replicas, leaves, counts])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _operations(jaxpr: ClosedJaxpr | Jaxpr) -> Iterator[str]:
    """Yield each operation with the types of its results, inner ones included: "dot_general bfloat16"."""
    for equation in level_of(jaxpr).eqns:
        types = (str(getattr(variable.aval, "dtype", "")) for variable in equation.outvars)
        yield " ".join([equation.primitive.name, *types])
        for inner in inner_jaxprs(equation):
            yield from _operations(inner)


def _axis(layout: Layout) -> str:
    return f"batch {layout.axis}"


def remember(program: Program, target: Target, time: StepTime, steps_per_execution: int = 1) -> None:
    """Store a prediction, to compare it with a later run of the program. An error of the disk is ignored.

    Args:
        program: the program.
        target: the system.
        time: its time, before the corrections of this machine and any wait for input.
        steps_per_execution: number of steps of a call in the prediction.
    """
    if _env.recorded_runs() == "none" or not math.isfinite(time.step_s) or time.step_s <= 0:
        return
    # The run may start another number of steps with a call, so the time of the call is stored apart.
    host_s = sum(op.time_s for op in time.ops if op.name == HOST_CALL)
    known, call_s = digest(program), host_s * steps_per_execution
    forecast = StoredForecast(known, target.name, target.devices, time.step_s - host_s, call_s)
    try:
        append(forecasts_file(), forecast)
    except OSError:
        return  # No disk, no home: a plan does not need it.


def runs_file() -> Path:
    """Return the path of the file of runs."""
    return _env.own_folder() / "runs.jsonl"


def forecasts_file() -> Path:
    """Return the path of the file of predictions."""
    return _env.own_folder() / "forecasts.jsonl"


def append(path: Path, record: MeasuredRun | StoredForecast) -> None:
    """Add a record to a file, as one line.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(dataclasses.asdict(record)) + "\n"
    with path.open("ab+") as file:
        # An unfinished line of a process that was ended while it wrote stays a separate line.
        is_torn = file.seek(0, os.SEEK_END) > 0 and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
        file.write(("\n" * is_torn + line).encode())  # One write: lines of runs that end at the same time do not mix.


def read_runs(path: Path | None = None, forecasts: Path | None = None) -> list[MeasuredRun]:
    """Return the stored runs, oldest first, each with its prediction, made before or after it.

    Args:
        path: the file of runs; None: this user's.
        forecasts: the file of predictions; None: this user's.
    """
    # Later lines replace earlier ones of the same run, or of the same program on the same system.
    predicted = {_key(forecast): forecast for forecast in _read(forecasts or forecasts_file(), StoredForecast)}
    newest = {run.run: run for run in _read(path or runs_file(), MeasuredRun)}
    return [
        dataclasses.replace(run, predicted_s=forecast.step_of(run.steps_per_execution) if forecast else None)
        for run, forecast in ((run, predicted.get(_key(run))) for run in newest.values())
    ]


def _key(record: MeasuredRun | StoredForecast) -> tuple[str, str, int]:
    return record.program, record.system, record.devices


def _read(path: Path, kind: type[Any]) -> Iterator[Any]:
    faults: list[str] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = record_of(kind, read_json(line))
            check_positive("step_s", record.step_s)
            yield record
        except ValueError as error:  # Cut off by a full disk or an end, or edited.
            faults.append(f"line {number} of {str(path)!r} is left out: {error}")
    if faults:
        _say_once(path, faults)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, each cut at `_MAX_LINE` characters and without its end; none if it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as text:
            while line := text.readline(_MAX_LINE):
                yield line.removesuffix("\n")
    except OSError:
        return


def _say_once(path: Path, faults: list[str]) -> None:
    if path not in _told:
        _told.add(path)
        more = f"; so are {len(faults) - 1} more of its lines" if len(faults) > 1 else ""
        advice = "Delete the damaged lines to stop this warning. All other lines are used."
        warnings.warn(f"{faults[0]}{more}. {advice}", stacklevel=3)
