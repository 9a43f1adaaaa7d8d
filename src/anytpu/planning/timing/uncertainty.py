"""`interval_of`: how far off a predicted step time may be.

Idea: what the model missed on published measurements, as a factor, spreads about evenly on both sides of 1. So the
interval is the prediction divided and multiplied by one factor. The factor is that of all chips where little was
measured on this one, drawn towards what was missed on this one where there is more; it grows with the part of the step
that is of a kind that is hard to price: exchange between chips, kernels that only their author prices; and it grows
where few measurements say how wide it is: Student's distribution in place of the normal one.

Rule: of the predictions that the fit could check without having seen them, nine of ten lie inside. What is counted at
its least (a kernel by its bytes) only ever takes longer: it widens the upper side.
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

# All other chips together weigh as much as so many measurements of this one.
_TRUST = 4
# Part of the variance that is a chip's own: what it is always off by, until measurements of it have told.
_OWN = 0.5
# What a part of a step may be off by, on top of what all is, as a logarithm.
_PARTS = {"collective": 0.25, "kernel": 0.2, "host": 0.3}
# The same of the exchange between slices, and of a step on several slices in any case: no such step was fitted.
_BETWEEN_SLICES, _SEVERAL_SLICES = 0.7, 0.08
# How many times as long as its bytes say a kernel may take of which nothing else is known.
_FLOOR = 4.0


def interval_of(
    ops: Sequence[OpTime], target: Target, fitted: dict[str, Any] | None = None, *, is_endless: bool = False
) -> tuple[float, float]:
    """Return the bounds between which the step time is expected, nine times of ten, seconds.

    Args:
        ops: the operations of the step.
        target: the system.
        fitted: the calibration; None means the one that was published with the package.
        is_endless: whether nobody knows how often a loop of it runs: then the upper bound is infinite.
    """
    step_s = sum(op.time_s for op in ops)
    low, high = logarithms_of(ops, target, fitted or calibration())
    return step_s * math.exp(low), math.inf if is_endless else step_s * math.exp(high)


def logarithms_of(ops: Sequence[OpTime], target: Target, fitted: dict[str, Any]) -> tuple[float, float]:
    """Return the bounds as logarithms of the step time over the predicted one: (-0.15, 0.15)."""
    spread = spread_of(ops, target, fitted)
    step_s = sum(op.time_s for op in ops) or 1.0
    floor_s = sum(op.time_s for op in ops if op.kind == "kernel" and op.priced_by == "bandwidth")
    return -spread, spread + math.log1p((_FLOOR - 1) * floor_s / step_s)


def spread_of(ops: Sequence[OpTime], target: Target, fitted: dict[str, Any]) -> float:
    """Return by how much a prediction may be off, as a logarithm."""
    assert target.chip is not None
    step_s = sum(op.time_s for op in ops) or 1.0
    spread = fitted["spread"]
    count, squares = spread["chips"].get(target.chip.name, (0, 0.0))
    variance = (_TRUST * spread["all"] ** 2 + squares) / (_TRUST + count) * (1 + _OWN / (1 + count))
    for kind, off in _PARTS.items():
        share = sum(op.time_s for op in ops if op.kind == kind) / step_s
        variance += (off * share) ** 2
    if target.slices > 1:
        share = sum(op.time_s for op in ops if op.opcode in ("send-done", "recv-done")) / step_s
        variance += _SEVERAL_SLICES**2 + (_BETWEEN_SLICES * share) ** 2
    return student(_TRUST + count) * math.sqrt(variance)


def student(freedom: float) -> float:
    """Return what `NINE_OF_TEN` is where the deviation itself was told from so many measurements.

    By the expansion of Cornish and Fisher, right to a percent from four on.

    Example:
        >>> round(student(4), 2), round(student(8), 2), round(student(1e9), 3)
        (2.11, 1.86, 1.645)
    """
    z = NINE_OF_TEN
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def evidence_of(target: Target) -> tuple[str, ...]:
    """Return sentences that name the published measurements of a chip and how far off the prediction of each was."""
    assert target.chip is not None
    sentences = tuple(calibration()["evidence"].get(target.chip.name, ()))
    if not sentences:
        sentences = (
            f"No published measurement of {target.chip.name} was used: its numbers are those of the other chips.",
        )
    if target.slices > 1:
        sentences += (
            "No step over several slices was fitted: the network between them is reckoned from the hosts' network "
            "cards and one published sum of 606 MB over two slices of v6e-256.",
        )
    return sentences
