"""What a plan knows of one system at several batches, and of one chip at several numbers of devices.

Idea: nobody says which predictions of a plan make a curve; those do that differ in one thing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from anytpu.planning.records import Plan, Prediction


@dataclasses.dataclass(frozen=True)
class Curve:
    """Predictions that differ in one thing, in its order.

    Attributes:
        name: what they share: a system ("v3-8") or a chip ("v3").
        points: the predictions, at least two, those that do not fit among them.
    """

    name: str
    points: tuple[Prediction, ...]


def batch_curves(plan: Plan) -> list[Curve]:
    """Return the systems that were planned at several batches."""
    found: dict[str, dict[int, Prediction]] = {}
    for one in _all(plan):
        if one.batch_size is not None:
            found.setdefault(one.target.name, {}).setdefault(one.batch_size, one)
    return _curves(found)


def scaling_curves(plan: Plan) -> list[Curve]:
    """Return the chips that were planned in several slices; of each slice, the prediction that was asked for first."""
    found: dict[str, dict[int, Prediction]] = {}
    for one in _all(plan):
        found.setdefault(one.target.chip.name, {}).setdefault(one.target.devices, one)
    return _curves(found)


def ideal_step_s(curve: Curve, one: Prediction) -> float | None:
    """Return the step time of a slice if each device were as fast as one of the smallest slice, seconds."""
    base = next((point for point in curve.points if point.examples_per_s and not point.is_floor), None)
    if base is None or base.examples_per_s is None or one.batch_size is None:
        return None
    return one.batch_size / (base.examples_per_s / base.target.devices * one.target.devices)


def efficiency(curve: Curve, one: Prediction) -> float | None:
    """Return how much of the speed of a device of the smallest slice a device of this one has."""
    ideal_s = ideal_step_s(curve, one)
    return ideal_s / one.step_s if ideal_s is not None and one.step_s and not one.is_floor else None


def _all(plan: Plan) -> Iterable[Prediction]:
    return (*plan.predictions, *plan.sweep)


def _curves(found: dict[str, dict[int, Prediction]]) -> list[Curve]:
    return [
        Curve(name, tuple(points[key] for key in sorted(points))) for name, points in found.items() if len(points) > 1
    ]
