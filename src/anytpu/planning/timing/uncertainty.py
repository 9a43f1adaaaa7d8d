"""`interval_of`: how far off a predicted step time may be.

Idea: what the model missed on published measurements, as a factor, spreads about evenly on both sides of 1. So the
interval is the prediction divided and multiplied by one factor, wider for chips and kinds of work that little is known
of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from anytpu.planning.records import OpTime
from anytpu.planning.target import Target
from anytpu.planning.timing.rates import calibration


def interval_of(ops: Sequence[OpTime], step_s: float, target: Target) -> tuple[float, float]:
    """Return the bounds between which the step time is expected, nine times of ten.

    Args:
        ops: the operations of the step.
        step_s: their time.
        target: the system.
    """
    factor = math.exp(_spread(target))
    return step_s / factor, step_s * factor


def evidence_of(target: Target) -> tuple[str, ...]:
    """Return sentences that name the published measurements of a chip and how far off the prediction of each was."""
    assert target.chip is not None
    return tuple(calibration()["evidence"].get(target.chip.name, ()))


def _spread(target: Target) -> float:
    assert target.chip is not None
    spread = calibration()["spread"]
    return spread.get(target.chip.name, spread["default"])
