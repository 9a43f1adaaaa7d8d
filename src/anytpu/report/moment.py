"""`Moment`: a snapshot of a run's progress, and its texts.

Idea: a progress bar has two independent parts. One observes a run and produces `Moment`s. The other displays them, on a
terminal or in a log file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from anytpu import units

Phase = Literal["compiling", "training", "validating", "evaluating", "predicting"]
"""Current activity of a run. "compiling" lasts until the first step has ended."""


@dataclasses.dataclass(frozen=True)
class Moment:
    """A snapshot of a run's progress.

    Attributes:
        phase: current activity.
        epoch: the current epoch, from 1; 0 in `evaluate` and `predict`, which have none.
        epochs: the last epoch; 0 in `evaluate` and `predict`.
        step: number of completed steps in this epoch.
        steps: number of steps in an epoch, or None if not known.
        fraction: completed part of the whole run, 0 to 1, or None if not known.
        metrics: the scalars to show, in order.
        per_second: speed in `unit` per second, or None before two calls have ended.
        unit: "examples" or "steps".
        remaining_s: estimated time until the end at this speed, or None if not known.
        elapsed_s: time since the start.
        finished: whether the run has ended.
    """

    phase: Phase
    epoch: int = 0
    epochs: int = 0
    step: int = 0
    steps: int | None = None
    fraction: float | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    per_second: float | None = None
    unit: Literal["examples", "steps"] = "steps"
    remaining_s: float | None = None
    elapsed_s: float = 0.0
    finished: bool = False


def title(moment: Moment) -> str:
    """Return the title: "epoch  3/20", or the phase in runs without epochs.

    Example:
        >>> title(Moment("training", epoch=3, epochs=20)), title(Moment("predicting"))
        ('epoch  3/20', 'predicting')
    """
    if not moment.epochs:
        return moment.phase
    return f"epoch {moment.epoch:>{len(str(moment.epochs))}}/{moment.epochs}"


def steps_text(moment: Moment) -> str:
    """Return the progress within the epoch: "step 200/900", or "step 200" while its length is not known."""
    return f"step {moment.step:,}" if moment.steps is None else f"step {moment.step:,}/{moment.steps:,}"


def speed_text(moment: Moment) -> str:
    """Return the speed, or "compiling" before the first step has ended; empty if not known."""
    if moment.phase in ("compiling", "validating"):
        return moment.phase
    return "" if moment.per_second is None else units.format_rate(moment.per_second, moment.unit)


def time_text(moment: Moment) -> str:
    """Return the remaining time, or the total time once the run is complete."""
    if moment.finished or (moment.fraction == 1 and moment.phase != "validating"):
        return f"in {units.format_seconds(moment.elapsed_s)}"
    return "" if moment.remaining_s is None else f"{units.format_seconds(round(moment.remaining_s))} left"


def metrics_text(moment: Moment) -> str:
    """Return the metrics in one line.

    Example:
        >>> metrics_text(Moment("training", metrics={"loss": 0.12345, "accuracy": 1.0, "lr": 1e-5}))
        'loss 0.1235  accuracy 1.0000  lr 1.000e-05'
    """
    return "  ".join(f"{name} {_four_digits(value)}" for name, value in moment.metrics.items())


def _four_digits(value: float) -> str:
    is_usual = value == 0 or 1e-3 <= abs(value) < 1e4 or value != value
    return f"{value:.4f}" if is_usual else f"{value:.3e}"
