"""What was predicted and what was measured, as one reads it: a table by chip, and the corrections that follow."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from anytpu import units
from anytpu.planning.calibration import LocalCalibration, LocalFactor
from anytpu.planning.runs import Run
from anytpu.report.terminal import hang, say

_SHOWN = 12
"""The runs of a chip that are shown: the newest."""


def print_calibration(console: Console, calibration: LocalCalibration) -> None:
    """Print predicted beside measured times of this user's own runs, and what later plans are corrected by."""
    if not calibration.runs:
        for line in hang("", _NOTHING, console.width):
            say(console, line)
        return
    chips: dict[str, list[Run]] = {}
    for run in calibration.runs:
        chips.setdefault(run.chip, []).append(run)
    for chip, runs in chips.items():
        say(console, f"{chip}: {units.format_count(len(runs))} {'run' if len(runs) == 1 else 'runs'}", style="bold")
        console.print(table(runs[-_SHOWN:]))
    for line in factor_lines(calibration, console.width):
        say(console, line)


_NOTHING = (
    "No run of yours is kept yet. A run on a real TPU or GPU stores its step time once it has made some calls; plan "
    "the same model, batch and system, and type anytpu plan --calibrate again."
)


def table(runs: list[Run]) -> Table:
    """Return predicted and measured times, a row for each run."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("program", no_wrap=True, overflow="ellipsis")
    shown.add_column("on", no_wrap=True)
    shown.add_column("when", no_wrap=True)
    for title in ("batch", "measured", "predicted", "error"):
        shown.add_column(title, justify="right", no_wrap=True)
    for run in runs:
        shown.add_row(run.name, run.system, run.time[:10], *_numbers(run))
    return shown


def _numbers(run: Run) -> tuple[str, str, str, str]:
    batch = "-" if run.batch_size is None else units.format_count(run.batch_size)
    measured = units.format_seconds(run.step_s)
    if run.predicted_s is None or run.error is None:
        return batch, measured, "-", "-"
    return batch, measured, units.format_seconds(run.predicted_s), f"{run.error:+.1%}"


def factor_lines(calibration: LocalCalibration, width: int = 80) -> list[str]:
    """Return what later plans on this machine are corrected by, and why nothing is where nothing is.

    Args:
        calibration: what to show.
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
        f"What is predicted for {factor.chip} is multiplied by {factor.factor:.2f} "
        f"from now on: {runs} of {programs}, drawn towards 1 as long as they are few."
    )
