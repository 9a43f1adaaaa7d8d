"""`clipped_affine_of`: recognize chains of operations that compute clip(factor * x + offset, low, high).

Idea: the operations are analyzed symbolically, never sampled. A chain that rounds, or that differs in a narrow
interval, may agree with an affine function at any number of sample points.

Rule: the analysis is conservative. A chain that is not proved affine becomes a table, which is exact for any function.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anytpu.chip.network.operations import Operation

MAX_CANCELLATION = 1e3
"""Maximum ratio of an intermediate offset to the final one; above it float32 cancellation makes the chain non-affine.
Some programs round by adding a large number and subtracting it again."""
_FACTORS = (1e-30, 1e30)


@dataclasses.dataclass(frozen=True)
class ClippedAffine:
    """clip(factor * x + offset, low, high).

    Attributes:
        factor: the factor, not 0.
        offset: the offset.
        low, high: bounds of the result; infinite if there are none.
        max_offset: maximum intermediate offset, divided by the factor.
    """

    factor: float
    offset: float
    low: float = -math.inf
    high: float = math.inf
    max_offset: float = 0.0

    @property
    def is_unclipped(self) -> bool:
        """Whether it has no bounds."""
        return (self.low, self.high) == (-math.inf, math.inf)

    def at(self, x: float) -> float:
        """Return its value."""
        return min(max(self.factor * x + self.offset, self.low), self.high)

    def plus(self, offset: float) -> ClippedAffine | None:
        """Return the function plus a number."""
        moved = self.offset + offset
        max_offset = max(self.max_offset, abs(moved / self.factor), abs(offset / self.factor))
        return _made(self.factor, moved, self.low + offset, self.high + offset, max_offset)

    def times(self, factor: float) -> ClippedAffine | None:
        """Return the function times a number; None for 0."""
        if factor == 0:
            return None
        low, high = sorted((self.low * factor, self.high * factor))
        return _made(self.factor * factor, self.offset * factor, low, high, self.max_offset)

    def within(self, low: float, high: float) -> ClippedAffine | None:
        """Return the function with two additional bounds."""
        lowest, highest = (min(max(end, low), high) for end in (self.low, self.high))
        return _made(self.factor, self.offset, lowest, highest, self.max_offset) if low < high else None


@dataclasses.dataclass(frozen=True)
class HalfLine:
    """The condition x > threshold, or x < threshold if not `above`; at the threshold itself it may be either."""

    threshold: float
    above: bool


_Value = ClippedAffine | HalfLine | float


def _made(factor: float, offset: float, low: float, high: float, max_offset: float) -> ClippedAffine | None:
    usable = _FACTORS[0] < abs(factor) < _FACTORS[1] and math.isfinite(offset) and low < high
    return ClippedAffine(factor, offset, low, high, max_offset) if usable else None


def clipped_affine_of(operations: Sequence[Operation], root: str) -> ClippedAffine | None:
    """Return the clipped affine function that operations compute; None if they compute another function.

    Args:
        operations: the operations, in order; each constant is a single number, and the last makes the result.
        root: name of the input value.
    """
    values: dict[str, _Value] = {root: ClippedAffine(1.0, 0.0)}
    for operation in operations:
        operands = [values[operand] if isinstance(operand, str) else operand.item() for operand in operation.operands]
        rule = _RULES.get(operation.name)
        made = rule(operands, operation.attributes) if rule is not None and _is_known(operation, operands) else None
        if made is None:
            return None
        values[operation.result] = made
    line = values[operations[-1].result]
    return (
        line
        if isinstance(line, ClippedAffine) and line.max_offset <= MAX_CANCELLATION * abs(line.offset / line.factor)
        else None
    )


def _is_known(operation: Operation, operands: Sequence[_Value]) -> bool:
    numbers = [operand for operand in operands if not isinstance(operand, ClippedAffine | HalfLine)]
    return operation.dtype in (np.float32, np.bool_) and not any(math.isnan(number) for number in numbers)


def _affine_and_number(operands: Sequence[_Value]) -> tuple[ClippedAffine, float] | None:
    """Return the affine operand and the number of two operands, in either order; None for others."""
    for line, number in (operands, reversed(operands)):
        if isinstance(line, ClippedAffine) and isinstance(number, float):
            return line, number
    return None


def _added(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    first, second = operands
    if isinstance(first, ClippedAffine) and isinstance(second, ClippedAffine):
        return _sum_of(first, second)
    parts = _affine_and_number(operands)
    return parts[0].plus(parts[1]) if parts is not None else None


def _sum_of(first: ClippedAffine, second: ClippedAffine) -> ClippedAffine | None:
    if not (first.is_unclipped and second.is_unclipped):
        return None
    factor, offset = first.factor + second.factor, first.offset + second.offset
    # The difference of nearly equal factors is mostly rounding error (cancellation).
    if abs(factor) * MAX_CANCELLATION < abs(first.factor):
        return None
    max_offset = max(
        abs(line.factor / factor) * max(line.max_offset, abs(line.offset / line.factor)) for line in (first, second)
    )
    return _made(factor, offset, -math.inf, math.inf, max_offset)


def _subtracted(operands: Sequence[_Value], attributes: object) -> ClippedAffine | None:
    first, second = operands
    turned = second.times(-1.0) if isinstance(second, ClippedAffine) else -second if isinstance(second, float) else None
    return _added((first, turned), attributes) if turned is not None else None


def _multiplied(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    parts = _affine_and_number(operands)
    return parts[0].times(parts[1]) if parts is not None else None


def _divided(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    line, number = operands
    return line.times(1 / number) if isinstance(line, ClippedAffine) and isinstance(number, float) and number else None


def _negated(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    (line,) = operands
    return line.times(-1.0) if isinstance(line, ClippedAffine) else None


def _raised(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    parts = _affine_and_number(operands)
    return parts[0].within(parts[1], math.inf) if parts is not None else None


def _lowered(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    parts = _affine_and_number(operands)
    return parts[0].within(-math.inf, parts[1]) if parts is not None else None


def _clamped(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    low, line, high = operands
    if not (isinstance(low, float) and isinstance(high, float) and isinstance(line, ClippedAffine)):
        return None
    return line.within(low, high)


def _compared(operands: Sequence[_Value], attributes: Mapping[str, object]) -> HalfLine | None:
    parts, direction = _affine_and_number(operands), attributes["comparison_direction"]
    if parts is None or direction not in ("GT", "GE", "LT", "LE") or not parts[0].is_unclipped:
        return None
    line, number = parts
    above = (direction in ("GT", "GE")) == isinstance(operands[0], ClippedAffine)
    return HalfLine((number - line.offset) / line.factor, above == (line.factor > 0))


def _selected(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    """Return the function of a select that continues as a constant from where it has that value: a bound."""
    side, *chosen = operands
    parts = _affine_and_number(chosen)
    if not isinstance(side, HalfLine) or parts is None:
        return None
    line, number = parts
    if not math.isclose(line.at(side.threshold), number, rel_tol=1e-6):
        return None
    constant_above = side.above == isinstance(chosen[0], float)
    is_top = constant_above == (line.factor > 0)
    return line.within(-math.inf, number) if is_top else line.within(number, math.inf)


_RULES: dict[str, Callable[[Sequence[_Value], Mapping[str, object]], ClippedAffine | HalfLine | None]] = {
    "add": _added,
    "clamp": _clamped,
    "compare": _compared,
    "divide": _divided,
    "maximum": _raised,
    "minimum": _lowered,
    "multiply": _multiplied,
    "negate": _negated,
    "select": _selected,
    "subtract": _subtracted,
}
