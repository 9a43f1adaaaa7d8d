"""`Plan`: predictions of one job, one for each requested system and for each batch of a sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from anytpu.errors import SettingError
from anytpu.planning.records.lock import lock_of
from anytpu.planning.records.lock_check import MEMORY_PERCENT, STEP_PERCENT, LockCheck, compare_with_lock
from anytpu.planning.records.prediction import Prediction, step_text
from anytpu.planning.records.shown import ShownRecord
from anytpu.report import output
from anytpu.showing import report

FORMAT = 1
"""Version of `Plan.to_record`; another number means that names in it have changed."""

SHOWN = 4
"""Maximum number of predictions in a `repr`."""


@dataclasses.dataclass(frozen=True)
class Plan(ShownRecord):
    """Predictions of a job on several systems.

    Attributes:
        job: name of the job: "sequential/train"; from the shell as it was typed, "train.py:create_model".
        predictions: one for each system, in the requested order.
        sweep: further predictions, for other batches or more cores, if a sweep was requested.
        examples: examples of an epoch, or None.
        epochs: epochs of the run, or None.

    Example:
        >>> plan = tpu.plan(model, batch_size=1024, tpu=["v2-8", "v3-8"])  # doctest: +SKIP
        >>> plan["v3-8"].step_s < plan["v2-8"].step_s  # doctest: +SKIP
        True
    """

    report_name: ClassVar = "plan"
    noun: ClassVar = "the plan"

    job: str
    predictions: tuple[Prediction, ...]
    sweep: tuple[Prediction, ...] = ()
    examples: int | None = None
    epochs: int | None = None

    def __repr__(self) -> str:
        """Return two lines: the job, the step on each system, and the method that prints the rest."""
        named = [f"{prediction.target.name} {step_text(prediction)}" for prediction in self.predictions[:SHOWN]]
        more = [f"{len(self.predictions) - SHOWN} more"] if len(self.predictions) > SHOWN else []
        sweep = f"; {len(self.sweep)} in the sweep" if self.sweep else ""
        return f"<Plan of {self.job}: {', '.join([*named, *more])}{sweep}.\nplan.show() prints it.>"

    def __getitem__(self, tpu: str) -> Prediction:
        """Return the prediction for one system.

        Raises:
            SettingError: it was not planned for.
        """
        for prediction in self.predictions:
            if tpu in (prediction.target.name, *prediction.target.aliases):
                return prediction
        names = ", ".join(repr(prediction.target.name) for prediction in self.predictions)
        raise SettingError(f"{tpu!r} is not in this plan, which is for {names}; plan again with tpu={tpu!r}")

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.predictions)

    def __len__(self) -> int:
        return len(self.predictions)

    @property
    def fastest(self) -> Prediction | None:
        """The system with the shortest time for an example, of those that the job fits on, or None.

        A floor is not compared, because the time above it is not known. A system whose time has no upper bound is named
        only if all are like that.
        """
        fitting = [
            prediction for prediction in self.predictions if prediction.step_s is not None and not prediction.is_floor
        ]
        return min(
            _bounded(fitting),
            key=lambda prediction: (prediction.step_s or 0.0) / (prediction.batch_size or 1),
            default=None,
        )

    @property
    def cheapest(self) -> Prediction | None:
        """The system with the lowest cost of an example on demand, of those that it fits on and whose price is known,
        or None.

        A floor is not compared, because the cost above it is not known. A system whose time has no upper bound is named
        only if all are like that.
        """
        priced = [
            prediction
            for prediction in self.predictions
            if prediction.cost and prediction.cost.usd_per_step and not prediction.is_floor
        ]
        return min(_bounded(priced), key=lambda prediction: _usd_per_example(prediction), default=None)

    def to_svg(self, folder: str | Path) -> list[Path]:
        """Write each plot of the plan as an SVG file into a folder, and return their paths."""
        return report("plan").to_images(self, folder, "svg")

    def to_png(self, folder: str | Path) -> list[Path]:
        """Write each plot of the plan as a PNG file into a folder, and return their paths."""
        return report("plan").to_images(self, folder, "png")

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values: numbers, strings, lists and dictionaries."""
        fastest, cheapest = self.fastest, self.cheapest
        return {
            "format": FORMAT,
            "job": self.job,
            "fastest": fastest.target.name if fastest else None,
            "cheapest": cheapest.target.name if cheapest else None,
            "examples": self.examples,
            "epochs": self.epochs,
            "predictions": [prediction.to_record() for prediction in self.predictions],
            "sweep": [prediction.to_record() for prediction in self.sweep],
        }

    def lock(self, path: str | Path) -> Path:
        """Write the predictions as a lock, for `check_lock` of a later plan, and return its path.

        It has the sweep too, but neither prices nor advice.

        Raises:
            SettingError: the file cannot be written.

        Example:
            >>> plan.lock("plan.lock")  # doctest: +SKIP
            PosixPath('plan.lock')
        """
        return output.write(lock_of(self.job, (*self.predictions, *self.sweep)).to_text(), path, "the lock")

    def check_lock(
        self, path: str | Path, *, step_percent: float = STEP_PERCENT, memory_percent: float = MEMORY_PERCENT
    ) -> LockCheck:
        """Compare the predictions with those of a lock.

        Args:
            path: a file that `lock` wrote for the same systems and batches.
            step_percent: tolerance of the step time.
            memory_percent: tolerance of the memory of a device, and of the bytes of each kind of collective.

        Raises:
            SettingError: a tolerance is not a number of 0 or more. The lock cannot be read, or is of other systems or
                batches. It has a floor where the plan has a forecast, or the reverse.

        Example:
            >>> check = plan.check_lock("plan.lock")  # doctest: +SKIP
            >>> assert check.holds, check  # doctest: +SKIP
        """
        predictions = (*self.predictions, *self.sweep)
        return compare_with_lock(str(path), self.job, predictions, step_percent, memory_percent)


def _bounded(predictions: list[Prediction]) -> list[Prediction]:
    """Return the predictions with an upper bound; all of them if none has one."""
    return [prediction for prediction in predictions if prediction.is_bounded] or predictions


def _usd_per_example(prediction: Prediction) -> float:
    usd = prediction.cost.usd_per_step if prediction.cost and prediction.cost.usd_per_step else float("inf")
    return usd / (prediction.batch_size or 1)
