"""The report of the calibration: a table of predicted and measured times by chip, and the resulting corrections."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from anytpu import units
from anytpu.planning.calibration import LocalCalibration, LocalFactor
from anytpu.planning.runs import MeasuredRun
from anytpu.report.terminal import hang, say

_SHOWN = 12
"""Maximum number of runs shown for a chip, the newest ones."""


def print_calibration(console: Console, calibration: LocalCalibration) -> None:
    """Print predicted and measured times of this user's runs, and the corrections of later plans."""
    if not calibration.runs:
        for line in hang("", _NOTHING, console.width):
            say(console, line)
        return
    chips: dict[str, list[MeasuredRun]] = {}
    for run in calibration.runs:
        chips.setdefault(run.chip, []).append(run)
    for chip, runs in chips.items():
        say(console, f"{chip}: {units.format_count(len(runs))} {'run' if len(runs) == 1 else 'runs'}", style="bold")
        console.print(table(runs[-_SHOWN:]))
    for line in factor_lines(calibration, console.width):
        say(console, line)


_NOTHING = (
    "No run of yours is recorded yet. A run on a real TPU or GPU records its step time after some calls; plan "
    "the same model, batch and system, and type anytpu plan --calibrate again."
)


def table(runs: list[MeasuredRun]) -> Table:
    """Return a table of predicted and measured times, one row per run."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("program", no_wrap=True, overflow="ellipsis")
    shown.add_column("on", no_wrap=True)
    shown.add_column("when", no_wrap=True)
    for title in ("batch", "measured", "predicted", "error"):
        shown.add_column(title, justify="right", no_wrap=True)
    for run in runs:
        shown.add_row(run.name, run.system, run.time[:10], *_numbers(run))
    return shown


def _numbers(run: MeasuredRun) -> tuple[str, str, str, str]:
    batch = "-" if run.batch_size is None else units.format_count(run.batch_size)
    measured = units.format_seconds(run.step_s)
    if run.predicted_s is None or run.error is None:
        return batch, measured, "-", "-"
    return batch, measured, units.format_seconds(run.predicted_s), f"{run.error:+.1%}"


def factor_lines(calibration: LocalCalibration, width: int = 80) -> list[str]:
    """Return the corrections of later plans on this machine, or the reason why there are none.

    Args:
        calibration: the calibration to show.
        width: columns of the terminal.
    """
    if not calibration.factors:
        text = "None of these runs was planned, so nothing is corrected: plan the same model, batch and system first."
        return hang("", text, width)
    return [line for factor in calibration.factors for line in hang("", _sentence(factor), width)]


def _sentence(factor: LocalFactor) -> str:
    runs = f"{factor.runs} {'run' if factor.runs == 1 else 'runs'}"
    programs = f"{factor.programs} {'program' if factor.programs == 1 else 'programs'}"
    return (
        f"From now on, predictions for {factor.chip} are multiplied by {factor.factor:.2f}, from "
        f"{runs} of {programs}; with few runs the factor is shrunk towards 1."
    )
