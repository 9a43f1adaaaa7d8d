"""The curves in a plan: one system at several batch sizes, and one chip at several numbers of devices.

Idea: a plan does not declare its curves; predictions that differ in one variable form one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from anytpu.planning.records import Plan, Prediction


@dataclasses.dataclass(frozen=True)
class Curve:
    """Predictions that differ in one variable, sorted by it.

    Attributes:
        name: the common system ("v3-8") or chip ("v3").
        points: the predictions, at least two, including those that do not fit.
    """

    name: str
    points: tuple[Prediction, ...]


def batch_curves(plan: Plan) -> list[Curve]:
    """Return the systems that were planned at several batches."""
    curves: dict[str, dict[int, Prediction]] = {}
    for prediction in _all(plan):
        if prediction.batch_size is not None:
            curves.setdefault(prediction.target.name, {}).setdefault(prediction.batch_size, prediction)
    return _curves(curves)


def scaling_curves(plan: Plan) -> list[Curve]:
    """Return the chips that were planned in several slices, with the first prediction of each slice."""
    curves: dict[str, dict[int, Prediction]] = {}
    for prediction in _all(plan):
        curves.setdefault(prediction.target.chip.name, {}).setdefault(prediction.target.devices, prediction)
    return _curves(curves)


def ideal_step_s(curve: Curve, prediction: Prediction) -> float | None:
    """Return the step time of a slice with the per-device speed of the smallest slice, in seconds."""
    base = next((point for point in curve.points if point.examples_per_s and not point.is_floor), None)
    if base is None or base.examples_per_s is None or prediction.batch_size is None:
        return None
    return prediction.batch_size / (base.examples_per_s / base.target.devices * prediction.target.devices)


def efficiency(curve: Curve, prediction: Prediction) -> float | None:
    """Return the per-device speed relative to the smallest slice."""
    ideal_s = ideal_step_s(curve, prediction)
    return (
        ideal_s / prediction.step_s if ideal_s is not None and prediction.step_s and not prediction.is_floor else None
    )


def _all(plan: Plan) -> Iterable[Prediction]:
    return (*plan.predictions, *plan.sweep)


def _curves(curves: dict[str, dict[int, Prediction]]) -> list[Curve]:
    return [
        Curve(name, tuple(points[key] for key in sorted(points))) for name, points in curves.items() if len(points) > 1
    ]
