"""Corrections from this user's own runs: the error of predictions on his machines, and a factor that corrects it.

Idea: a calibration on published measurements leaves an error that is largely common to all programs of one user on one
chip. Its causes are his versions, his input and his style of models. Each program that was both predicted and run gives
a ratio of times. The correction is their mean, shrunk towards 1 while there are few.

Rule: with `r` the logarithm of measured over predicted, one for each program (the mean of its runs), and `n`
programs,

    factor = exp(sum(r) / (n + 2))

This is the posterior mean if chips are off by some tenths and programs differ by about 1.4 times as much. It is half of
the observed error with two programs, nine tenths with eighteen. A corrected prediction says so.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
from collections.abc import Iterable
from pathlib import Path

from anytpu import _env
from anytpu.errors import SettingError
from anytpu.files.json_text import read_json
from anytpu.files.opening import read_text
from anytpu.files.replacing import write_text
from anytpu.planning.costs.waits import add_waits
from anytpu.planning.jobs.job import batch_rows
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import StepTime
from anytpu.planning.records.stored import check_positive, record_of
from anytpu.planning.records.target import Target
from anytpu.planning.runs import MeasuredRun, read_runs, remember
from anytpu.program.program import Program

PRIOR_PROGRAMS = 2
"""Weight of the prior "no correction", in programs."""

_USUAL_SPREAD = 0.25
"""How far, as a logarithm, programs are believed to lie from a chip's factor before any was seen."""


@dataclasses.dataclass(frozen=True, slots=True)
class LocalFactor:
    """Factor on predictions for one chip on this machine.

    Attributes:
        chip: "v3".
        factor: multiplier of a predicted time.
        spread: standard deviation of measured over corrected prediction, as a logarithm.
        programs: number of programs behind it.
        runs: number of runs of those programs.
    """

    chip: str
    factor: float
    spread: float
    programs: int
    runs: int


@dataclasses.dataclass(frozen=True)
class LocalCalibration:
    """The corrections from a user's own runs.

    Attributes:
        runs: all stored runs, oldest first, those without a prediction included.
        factors: the corrections.
    """

    runs: tuple[MeasuredRun, ...]
    factors: tuple[LocalFactor, ...]


def calibrate(runs: Iterable[MeasuredRun] | None = None) -> LocalCalibration:
    """Compute the corrections from runs.

    Args:
        runs: the runs; None: all of this user's.

    Example:
        >>> calibrate([]).factors
        ()
    """
    kept = tuple(read_runs() if runs is None else runs)
    groups: dict[str, list[MeasuredRun]] = {}
    for run in kept:
        if run.predicted_s is not None:
            groups.setdefault(run.chip, []).append(run)
    return LocalCalibration(kept, tuple(_factor(chip, group) for chip, group in sorted(groups.items())))


def _factor(chip: str, runs: list[MeasuredRun]) -> LocalFactor:
    programs: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        assert run.predicted_s is not None
        programs.setdefault((run.program, run.devices), []).append(math.log(run.step_s / run.predicted_s))
    ratios = [statistics.mean(each) for each in programs.values()]
    shift = sum(ratios) / (len(ratios) + PRIOR_PROGRAMS)
    # The prior counts as PRIOR_PROGRAMS further programs, here as in the mean.
    squares = sum((ratio - shift) ** 2 for ratio in ratios) + PRIOR_PROGRAMS * _USUAL_SPREAD**2
    spread = math.sqrt(squares / (len(ratios) + PRIOR_PROGRAMS))
    return LocalFactor(chip, math.exp(shift), spread, len(ratios), len(runs))


def calibration_file() -> Path:
    """Return the path of the corrections."""
    return _env.own_folder() / "calibration.json"


def save(calibration: LocalCalibration) -> Path:
    """Store the corrections for later plans on this machine, and return their path.

    Raises:
        SettingError: they cannot be written.
    """
    path = calibration_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"factors": [dataclasses.asdict(factor) for factor in calibration.factors]}, indent=1)
        write_text(path, text + "\n")
    except OSError as error:
        raise SettingError(
            f"the corrections cannot be written to {str(path)!r}: {error.strerror or error}; name another folder with "
            "XDG_DATA_HOME"
        ) from error
    return path


def local_factor(target: Target) -> LocalFactor | None:
    """Return the stored correction of predictions for a system, or None.

    Raises:
        SettingError: the file of the corrections cannot be read.
    """
    path = calibration_file()
    factors = read_factors(path) if os.path.exists(path) else ()
    return next((factor for factor in factors if factor.chip == target.chip.name), None)


def read_factors(path: Path) -> tuple[LocalFactor, ...]:
    """Return the corrections in a file.

    Raises:
        SettingError: it cannot be read, or holds something else.
    """
    try:
        said = read_json(read_text(path))
        if not isinstance(said, dict) or not isinstance(said.get("factors"), list):
            raise ValueError("it has no list named 'factors'")
        factors = tuple(record_of(LocalFactor, record) for record in said["factors"])
        for record in factors:
            check_positive("factor", record.factor)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingError(
            f"the corrections in {str(path)!r} cannot be read ({why}); delete the file, or compute them again with "
            "anytpu plan --calibrate"
        ) from error
    return factors


def record_and_correct(program: Program, time: StepTime, target: Target, settings: PlanSettings) -> StepTime:
    """Store a prediction for later runs, and return it corrected by earlier ones, with its waits.

    Only a prediction of the job as it will run is stored: no trial of a changed program, and none with other compiler
    options. The waits for the host and for the input are not corrected: the host's holds for every host, the input's is
    the user's.

    Args:
        program: the predicted program.
        time: its time, uncorrected and without any wait for input.
        target: the system.
        settings: settings of every prediction of the plan.

    Raises:
        SettingError: the file of the corrections cannot be read.
    """
    if not settings.is_trial and not settings.options:
        remember(program, target, time, settings.steps_per_execution)
    return add_waits(correct(time, target), settings, batch_rows(program))


def correct(time: StepTime, target: Target) -> StepTime:
    """Return a predicted time, corrected by this user's own runs if there are any.

    Args:
        time: the time; its `ops` are unchanged.
        target: the system.

    Raises:
        SettingError: the file of the corrections cannot be read.
    """
    factor = local_factor(target)
    if factor is None:
        return time
    # 1. Time and interval are corrected alike.
    step_s = time.step_s * factor.factor
    low_s, high_s = (bound_s * factor.factor for bound_s in time.interval_s)
    if factor.programs > PRIOR_PROGRAMS and math.isfinite(high_s):
        # 2. With more programs than the prior has, the interval may become narrower, never wider.
        # Enough runs of this machine: their spread around the correction gives the interval, nine in ten within it.
        width = math.exp(1.645 * factor.spread)
        certain_s = step_s - factor.factor * sum(op.optional_s for op in time.ops)
        most_s = step_s + factor.factor * sum(op.further_s for op in time.ops)
        low_s, high_s = max(low_s, certain_s / width), min(high_s, most_s * width)
    # 3. The interval begins no lower than the peaks of the chip allow, and has the prediction in it.
    low_s = max(low_s, min(step_s, sum(op.least_s for op in time.ops)))
    return dataclasses.replace(
        time,
        step_s=step_s,
        interval_s=(low_s, high_s),
        evidence=(*time.evidence, factor_note(factor)),
        correction=factor.factor,
    )


def factor_note(factor: LocalFactor) -> str:
    """Return the note on a correction: "corrected by x1.07 from 12 of your own runs (4 programs)"."""
    runs = "1 of your own runs" if factor.runs == 1 else f"{factor.runs} of your own runs"
    programs = "1 program" if factor.programs == 1 else f"{factor.programs} programs"
    return f"corrected by x{factor.factor:.2f} from {runs} ({programs})"
