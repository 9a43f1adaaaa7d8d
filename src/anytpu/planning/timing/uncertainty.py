"""`interval_of`: how far off a predicted step time may be.

Idea: what the model missed on published measurements, as a factor, spreads about evenly on both sides of 1. So the
interval is the prediction divided and multiplied by one factor. The factor is that of all chips where little was
measured on this one, drawn towards what was missed on this one where there is more; and it grows with the part of the
step that is of a kind that is hard to price: exchange between chips, kernels that only their author prices.

Rule: of the predictions that the fit could check without having seen them, nine of ten lie inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from anytpu.planning.records import OpTime
from anytpu.planning.target import Target
from anytpu.planning.timing.rates import calibration

NINE_OF_TEN = 1.645
"""Standard deviations to either side of the mean that hold 90 % of a normal distribution."""

# As many measurements of a chip weigh as much as those of all others.
_TRUST = 2
# What a part of a step may be off by, on top of what all is, as a logarithm.
_PARTS = {"collective": 0.25, "kernel": 0.2, "host": 0.3, "input": 0.1}


def interval_of(ops: Sequence[OpTime], target: Target, fitted: dict[str, Any] | None = None) -> tuple[float, float]:
    """Return the bounds between which the step time is expected, nine times of ten, seconds.

    Args:
        ops: the operations of the step.
        target: the system.
        fitted: the calibration; None means the one that was published with the package.
    """
    step_s = sum(op.time_s for op in ops)
    factor = math.exp(spread_of(ops, target, fitted or calibration()))
    return step_s / factor, step_s * factor


def spread_of(ops: Sequence[OpTime], target: Target, fitted: dict[str, Any]) -> float:
    """Return by how much a prediction may be off, as a logarithm."""
    assert target.chip is not None
    step_s = sum(op.time_s for op in ops) or 1.0
    spread = fitted["spread"]
    count, squares = spread["chips"].get(target.chip.name, (0, 0.0))
    variance = (_TRUST * spread["all"] ** 2 + squares) / (_TRUST + count) * (1 + 0.5 / (1 + count))
    for kind, off in _PARTS.items():
        share = sum(op.time_s for op in ops if op.kind == kind) / step_s
        variance += (off * share) ** 2
    return NINE_OF_TEN * math.sqrt(variance)


def evidence_of(target: Target) -> tuple[str, ...]:
    """Return sentences that name the published measurements of a chip and how far off the prediction of each was."""
    assert target.chip is not None
    sentences = calibration()["evidence"].get(target.chip.name, ())
    if not sentences:
        return (f"No published measurement of {target.chip.name} was used: its numbers are those of the other chips.",)
    return tuple(sentences)
