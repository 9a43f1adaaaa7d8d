"""`StepChanges`: memory and time of a training step as it is, and of the same step with one change."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from anytpu import units
from anytpu.errors import SettingError
from anytpu.planning.records.cost import Holding
from anytpu.planning.records.prediction import Prediction
from anytpu.planning.records.shown import ShownRecord
from anytpu.planning.records.target import Target


@dataclasses.dataclass(frozen=True)
class ChangedStep:
    """A training step with one change.

    Attributes:
        change: the change, a few words: "slots in bfloat16".
        prediction: its prediction from a schedule; None if it was not compiled.
        steps: number of its steps that train on one batch of the job: more than 1 for gradient accumulation.
        how: how to make the change, a sentence; "" for the step as it is.
        reason: why it was not compiled, a sentence; "" otherwise.
    """

    change: str
    prediction: Prediction | None = None
    steps: int = 1
    how: str = ""
    reason: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None if it was not compiled."""
        return self.prediction.fits if self.prediction else None

    @property
    def memory_bytes(self) -> int | None:
        """Memory that it needs of a device, bytes; None if it was not compiled."""
        memory = self.prediction.memory if self.prediction else None
        return memory.peak_bytes if memory else None

    @property
    def batch_s(self) -> float | None:
        """Predicted time to train on one batch of the job, seconds; None if it was not compiled or does not fit."""
        step_s = self.prediction.step_s if self.prediction else None
        return None if step_s is None else self.steps * step_s

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """Interval of `batch_s`, seconds."""
        if self.prediction is None or self.prediction.time is None:
            return None
        low_s, high_s = self.prediction.time.interval_s
        return self.steps * low_s, self.steps * high_s

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return {
            "change": self.change,
            "steps": self.steps,
            "fits": self.fits,
            "memory_bytes": self.memory_bytes,
            "batch_s": self.batch_s,
            "interval_s": self.interval_s,
            "how": self.how,
            "reason": self.reason,
        }


@dataclasses.dataclass(frozen=True)
class SliceChoice:
    """A slice with the least chips of its kind that would hold a step.

    Attributes:
        change: the change of the step; "as it is" for none.
        holding: the slice, its memory (estimated, not compiled) and its price.
    """

    change: str
    holding: Holding

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return {"change": self.change, **self.holding.to_record()}


@dataclasses.dataclass(frozen=True)
class StepChanges(ShownRecord):
    """A training step as it is and with each change, and the slices that hold it.

    Attributes:
        job: name of the job.
        target: the system.
        batch_size: examples of a batch over all devices, or None.
        rows: the steps; the first is as it is.
        slices: the smallest slice of each chip that holds one of them, the lowest price first.
        notes: further notes, a sentence each.

    Example:
        >>> changes = tpu.ways_to_fit(model, batch_size=64, tpu="v5e-1")  # doctest: +SKIP
        >>> changes["by block"].memory_bytes < changes.rows[0].memory_bytes  # doctest: +SKIP
        True
    """

    report_name: ClassVar = "changes"
    noun: ClassVar = "the changes"

    job: str
    target: Target
    batch_size: int | None
    rows: tuple[ChangedStep, ...]
    slices: tuple[SliceChoice, ...] = ()
    notes: tuple[str, ...] = ()

    def __getitem__(self, change: str) -> ChangedStep:
        """Return the row of a change by its name.

        Raises:
            SettingError: there is no such row; the message lists the rows.
        """
        for row in self.rows:
            if row.change == change:
                return row
        raise SettingError(f"no row is named {change!r}; the rows are {', '.join(row.change for row in self.rows)}")

    def __repr__(self) -> str:
        """Return one line: the memory of the step as it is, the number of changes that fit, and how to see them."""
        compiled = [row for row in self.rows[1:] if row.prediction is not None]
        memory = self.rows[0].memory_bytes
        needs = "" if memory is None else f" {units.format_bytes(memory)} as it is,"
        fit = sum(bool(row.fits) for row in compiled)
        return (
            f"<StepChanges of {self.job} on {self.target.name}:{needs} {fit} of {len(compiled)} compiled changes fit; "
            "changes.show() prints them>"
        )

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return {
            "format": 1,
            "job": self.job,
            "tpu": self.target.name,
            "batch_size": self.batch_size,
            "rows": [row.to_record() for row in self.rows],
            "slices": [choice.to_record() for choice in self.slices],
            "notes": list(self.notes),
        }
