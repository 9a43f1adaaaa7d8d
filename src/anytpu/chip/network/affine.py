"""Straight lines: which chains of operations are a factor and a summand, clipped.

Idea: told from the operations themselves, never from values at some points. A chain that rounds, or that is another
function in a narrow place, is like a line at any number of points, and is none.

Rule: what is not known for sure to be a line is none. It becomes a table, which is right for every function.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anytpu.chip.network.operations import Operation

MAX_CANCELLATION = 1e3
"""How many times the summand a summand on the way to it may be: float32 rounds to the digits of the greatest, and there
are those who round by adding a great number and subtracting it again."""
_FACTORS = (1e-30, 1e30)


@dataclasses.dataclass(frozen=True)
class ClippedAffine:
    """clip(factor * x + summand, low, high).

    Attributes:
        factor: not 0.
        summand, low, high: what is added, and the bounds.
        max_offset: the greatest summand on the way to this one, in steps of x.
    """

    factor: float
    summand: float
    low: float = -math.inf
    high: float = math.inf
    max_offset: float = 0.0

    @property
    def is_free(self) -> bool:
        """Whether it has no bounds."""
        return (self.low, self.high) == (-math.inf, math.inf)

    def at(self, x: float) -> float:
        """Return its value."""
        return min(max(self.factor * x + self.summand, self.low), self.high)

    def plus(self, summand: float) -> ClippedAffine | None:
        """Return it with a number added."""
        moved = self.summand + summand
        max_offset = max(self.max_offset, abs(moved / self.factor), abs(summand / self.factor))
        return _made(self.factor, moved, self.low + summand, self.high + summand, max_offset)

    def times(self, factor: float) -> ClippedAffine | None:
        """Return it with each value multiplied."""
        if factor == 0:
            return None
        low, high = sorted((self.low * factor, self.high * factor))
        return _made(self.factor * factor, self.summand * factor, low, high, self.max_offset)

    def within(self, low: float, high: float) -> ClippedAffine | None:
        """Return it with two bounds more."""
        lowest, highest = (min(max(end, low), high) for end in (self.low, self.high))
        return _made(self.factor, self.summand, lowest, highest, self.max_offset) if low < high else None


@dataclasses.dataclass(frozen=True)
class HalfLine:
    """Whether x is on one side of a place: above it, or below it. At the place itself it may be either."""

    place: float
    above: bool


_Value = ClippedAffine | HalfLine | float


def _made(factor: float, summand: float, low: float, high: float, max_offset: float) -> ClippedAffine | None:
    usable = _FACTORS[0] < abs(factor) < _FACTORS[1] and math.isfinite(summand) and low < high
    return ClippedAffine(factor, summand, low, high, max_offset) if usable else None


def clipped_affine_of(operations: Sequence[Operation], root: str) -> ClippedAffine | None:
    """Return the line that operations on one number make of it; None where they make something else.

    Args:
        operations: in order; their constants are one number each, and the last makes the result.
        root: the value that goes in.
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
        if isinstance(line, ClippedAffine) and line.max_offset <= MAX_CANCELLATION * abs(line.summand / line.factor)
        else None
    )


def _is_known(operation: Operation, operands: Sequence[_Value]) -> bool:
    numbers = [operand for operand in operands if not isinstance(operand, ClippedAffine | HalfLine)]
    return operation.dtype in (np.float32, np.bool_) and not any(math.isnan(number) for number in numbers)


def _parted(operands: Sequence[_Value]) -> tuple[ClippedAffine, float] | None:
    """Return the line and the number of two operands."""
    for line, number in (operands, reversed(operands)):
        if isinstance(line, ClippedAffine) and isinstance(number, float):
            return line, number
    return None


def _added(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    first, second = operands
    if isinstance(first, ClippedAffine) and isinstance(second, ClippedAffine):
        return _joined(first, second)
    parts = _parted(operands)
    return parts[0].plus(parts[1]) if parts is not None else None


def _joined(first: ClippedAffine, second: ClippedAffine) -> ClippedAffine | None:
    if not (first.is_free and second.is_free):
        return None
    factor, summand = first.factor + second.factor, first.summand + second.summand
    # What is left of two that are nearly the same is rounding.
    if abs(factor) * MAX_CANCELLATION < abs(first.factor):
        return None
    max_offset = max(
        abs(line.factor / factor) * max(line.max_offset, abs(line.summand / line.factor)) for line in (first, second)
    )
    return _made(factor, summand, -math.inf, math.inf, max_offset)


def _subtracted(operands: Sequence[_Value], attributes: object) -> ClippedAffine | None:
    first, second = operands
    turned = second.times(-1.0) if isinstance(second, ClippedAffine) else -second if isinstance(second, float) else None
    return _added((first, turned), attributes) if turned is not None else None


def _multiplied(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    parts = _parted(operands)
    return parts[0].times(parts[1]) if parts is not None else None


def _divided(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    line, number = operands
    return line.times(1 / number) if isinstance(line, ClippedAffine) and isinstance(number, float) and number else None


def _negated(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    (line,) = operands
    return line.times(-1.0) if isinstance(line, ClippedAffine) else None


def _raised(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    parts = _parted(operands)
    return parts[0].within(parts[1], math.inf) if parts is not None else None


def _lowered(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    parts = _parted(operands)
    return parts[0].within(-math.inf, parts[1]) if parts is not None else None


def _clamped(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    low, line, high = operands
    if not (isinstance(low, float) and isinstance(high, float) and isinstance(line, ClippedAffine)):
        return None
    return line.within(low, high)


def _compared(operands: Sequence[_Value], attributes: Mapping[str, object]) -> HalfLine | None:
    parts, direction = _parted(operands), attributes["comparison_direction"]
    if parts is None or direction not in ("GT", "GE", "LT", "LE") or not parts[0].is_free:
        return None
    line, number = parts
    above = (direction in ("GT", "GE")) == isinstance(operands[0], ClippedAffine)
    return HalfLine((number - line.summand) / line.factor, above == (line.factor > 0))


def _selected(operands: Sequence[_Value], _: object) -> ClippedAffine | None:
    """Return a line that goes on as a constant from the place where it has that value: a bound."""
    side, *chosen = operands
    parts = _parted(chosen)
    if not isinstance(side, HalfLine) or parts is None:
        return None
    line, number = parts
    if not math.isclose(line.at(side.place), number, rel_tol=1e-6):
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
