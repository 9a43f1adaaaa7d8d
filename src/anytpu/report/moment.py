"""`Moment`: how far a run is, and the words for it.

Idea: a progress bar is two things. One watches a run and says where it stands: a `Moment`. The other shows a `Moment`,
on a terminal or in a log file. Neither knows the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from anytpu import units

Phase = Literal["compiling", "training", "validating", "evaluating", "predicting"]
"""What a run does now. "compiling" is everything before the first step has ended."""


@dataclasses.dataclass(frozen=True)
class Moment:
    """Where a run stands.

    Attributes:
        phase: what it does now.
        epoch: the epoch that runs, from 1; 0 where there are none, in `evaluate` and `predict`.
        epochs: the epoch after which it ends; 0 where there are none.
        step: steps done of this epoch.
        steps: steps of one epoch, or None while nobody knows.
        fraction: the part of the whole run that is done, 0 to 1, or None while nobody knows.
        metrics: the scalars to show, in order.
        per_second: how fast it goes, in `unit`, or None before two calls have ended.
        unit: "examples" or "steps".
        remaining_s: seconds until the end at this speed, or None while nobody knows.
        elapsed_s: seconds since the start.
        finished: True once the run has ended.
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
    """Return what runs: "epoch  3/20", or the phase where there are no epochs.

    Example:
        >>> title(Moment("training", epoch=3, epochs=20)), title(Moment("predicting"))
        ('epoch  3/20', 'predicting')
    """
    if not moment.epochs:
        return moment.phase
    return f"epoch {moment.epoch:>{len(str(moment.epochs))}}/{moment.epochs}"


def steps_text(moment: Moment) -> str:
    """Return how far the epoch is: "step 200/900", "step 200" while its length is not known."""
    return f"step {moment.step:,}" if moment.steps is None else f"step {moment.step:,}/{moment.steps:,}"


def speed_text(moment: Moment) -> str:
    """Return how fast the run goes, or "compiling" before its first step has ended; empty when that is not known."""
    if moment.phase in ("compiling", "validating"):
        return moment.phase
    return "" if moment.per_second is None else units.format_rate(moment.per_second, moment.unit)


def time_text(moment: Moment) -> str:
    """Return how long the run still takes, or took once all of it is done."""
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
