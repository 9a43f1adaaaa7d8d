"""`RowAxes`: the axis of each array of a traced step along which the rows of the batch are.

Rule: an axis is an informed guess. A rewriting that uses it must be correct for any axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

from jax.extend.core import JaxprEqn, Var

from anytpu.program.jaxprs import shape_of

_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin")


@final
class RowAxes:
    """The axes of the rows that are known so far.

    Args:
        pieces: number of equal pieces into which an axis of rows must be divisible.
    """

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces
        self._axes: dict[Any, int] = {}

    def add(self, variable: Any, axis: int | None) -> None:
        """Add the axis of a variable; None and an axis that the pieces do not divide are left out."""
        if axis is not None and shape_of(variable)[axis] % self._pieces == 0:
            self._axes[variable] = axis

    def of(self, atom: Any) -> int | None:
        """Return the axis of the rows of a variable; None for a literal or a variable without rows."""
        return self._axes.get(atom) if isinstance(atom, Var) else None

    def add_results(self, equation: JaxprEqn) -> None:
        """Add the axes of the results of an equation, whose operands are known."""
        if equation.primitive.name == "dot_general":
            self.add(equation.outvars[0], self._of_product(equation))
            return
        for operand in equation.invars:
            axis = self.of(operand)
            if axis is None:
                continue
            for result in equation.outvars:
                self.add(result, _moved(equation, axis, shape_of(operand), shape_of(result)))

    def summed(self, equation: JaxprEqn) -> tuple[int | None, ...] | None:
        """Return for each operand the axis of rows over which an equation sums; None if it does not sum over rows."""
        axes = tuple(map(self.of, equation.invars))
        match equation.primitive.name:
            case "reduce_sum":
                is_sum = axes[0] in equation.params["axes"]
            case "dot_general":
                contracted, _ = equation.params["dimension_numbers"]
                is_sum = tuple(axes) in list(zip(*contracted, strict=True))
            case "conv_general_dilated":
                numbers, params = equation.params["dimension_numbers"], equation.params
                has_groups = params["feature_group_count"] > 1 or params["batch_group_count"] > 1
                is_sum = not has_groups and axes == (numbers.lhs_spec[1], numbers.rhs_spec[1])
            case _:
                is_sum = False
        return axes if is_sum else None

    def _of_product(self, equation: JaxprEqn) -> int | None:
        (left, right), (left_batch, right_batch) = equation.params["dimension_numbers"]
        left_axis, right_axis = map(self.of, equation.invars)
        left_free = _without(range(len(shape_of(equation.invars[0]))), (*left, *left_batch))
        right_free = _without(range(len(shape_of(equation.invars[1]))), (*right, *right_batch))
        if left_axis in left_batch:
            return left_batch.index(left_axis)
        if left_axis in left_free:
            return len(left_batch) + left_free.index(left_axis)
        if right_axis in right_free:
            return len(left_batch) + len(left_free) + right_free.index(right_axis)
        return None


def _moved(equation: JaxprEqn, axis: int, source: tuple[int, ...], target: tuple[int, ...]) -> int | None:
    """Return the axis of a result for the axis of an operand."""
    params = equation.params
    match equation.primitive.name:
        case "transpose":
            return params["permutation"].index(axis)
        case "broadcast_in_dim":
            moved = params["broadcast_dimensions"][axis]
            return moved if target[moved] == source[axis] else None
        case "reshape":
            return _reshaped(axis, source, target)
        case "squeeze":
            return axis - sum(each % len(source) < axis for each in params["dimensions"])
        case "conv_general_dilated":
            numbers = params["dimension_numbers"]
            return numbers.out_spec[0] if axis == numbers.lhs_spec[0] and len(source) == len(target) else None
        case name if name in _REDUCTIONS:
            return None if axis in params["axes"] else axis - sum(each < axis for each in params["axes"])
    is_kept = len(source) == len(target) and source[axis] == target[axis]
    return axis if is_kept else None


def _reshaped(axis: int, source: Sequence[int], target: Sequence[int]) -> int | None:
    """Return the axis that begins with the same stride; pieces of it have the same elements."""
    before = math.prod(source[:axis])
    return next((each for each in range(len(target)) if math.prod(target[:each]) == before and target[each] > 1), None)


def _without(items: Sequence[int], others: Sequence[int]) -> list[int]:
    return [item for item in items if item not in others]
