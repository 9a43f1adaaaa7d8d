"""Pools: reductions and windows over positions, as maxima and averages.

Idea: programs write an average as a sum and a division after it. A division by the number of positions of the window
makes an average that counts the padding. A division by the number of positions inside, a constant that differs at the
border, makes an average that does not.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from anytpu.chip.graph.arithmetic import window_counts
from anytpu.chip.graph.nodes import Pair
from anytpu.chip.graph.shapes import Geometry
from anytpu.chip.network.constants import of_example
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.recorder import uniform
from anytpu.chip.network.trace import OperationTrace


@dataclasses.dataclass(frozen=True)
class WindowSum:
    """A sum over windows.

    Attributes:
        divider: result of the operation that makes an average of it; None if there is none.
        counts_padding: whether the average divides by all positions of the window.
        factor: factor that the average must still be multiplied with.
    """

    divider: str | None
    counts_padding: bool
    factor: float


_NEUTRAL = {"add": 0.0, "maximum": -math.inf}


def is_pool(operation: Operation, trace: OperationTrace) -> bool:
    """Return whether an operation is a sum or a maximum over positions."""
    if operation.name not in ("reduce", "reduce_window") or operation.attributes["reducer"] not in _NEUTRAL:
        return False
    value, start = operation.operands
    if (
        not isinstance(value, str)
        or isinstance(start, str)
        or uniform(start) != _NEUTRAL[operation.attributes["reducer"]]
    ):
        return False
    layout, rank = trace.layouts[value], len(trace.example(value))
    if layout.is_merged or rank not in (2, 3):
        return False
    axes = [layout.example_axis(axis) for axis in _touched(operation)]
    plain = operation.name == "reduce" or {
        *operation.attributes["base_dilations"],
        *operation.attributes["window_dilations"],
    } == {1}
    return bool(axes or operation.name == "reduce_window") and rank - 1 not in axes and plain


def _touched(operation: Operation) -> list[int]:
    if operation.name == "reduce":
        return operation.attributes["dimensions"]
    sizes, strides, padding = (
        operation.attributes[name] for name in ("window_dimensions", "window_strides", "padding")
    )
    return [n for n in range(len(sizes)) if (sizes[n], strides[n], list(padding[n])) != (1, 1, [0, 0])]


def window_of(operation: Operation, trace: OperationTrace) -> tuple[Pair, Geometry]:
    """Return the height and width of a pool's window, and its steps."""
    (value,) = operation.values
    layout, shape = trace.layouts[value], trace.types[value].shape
    rank = len(trace.example(value))
    size, strides, padding = [1, 1], [1, 1], [(0, 0), (0, 0)]
    for axis in _touched(operation):
        chip_axis = layout.example_axis(axis) + 3 - rank
        if operation.name == "reduce":
            size[chip_axis] = shape[axis]
        else:
            size[chip_axis] = operation.attributes["window_dimensions"][axis]
            strides[chip_axis] = operation.attributes["window_strides"][axis]
            low, high = operation.attributes["padding"][axis]
            padding[chip_axis] = (low, high)
    return (size[0], size[1]), Geometry((strides[0], strides[1]), padding=(padding[0], padding[1]))


def averaged(operation: Operation, trace: OperationTrace) -> WindowSum:
    """Return the average that a sum over windows belongs to."""
    window = window_of(operation, trace)
    count = math.prod(window[0])
    sole = _sole_user(operation, trace)
    direct = sole
    while sole is not None and sole.name in ("reshape", "broadcast_in_dim") and _keeps(sole, trace):
        sole = _sole_user(sole, trace)
    by = sole.operands[1] if sole is not None and sole.name in ("divide", "multiply") else None
    if sole is not None and sole.name == "multiply" and not isinstance(by, np.ndarray):
        by = sole.operands[0]
    if sole is None or not isinstance(by, np.ndarray):
        return WindowSum(None, True, float(count))
    number = uniform(by)
    if number:
        return WindowSum(sole.result, True, count / number if sole.name == "divide" else count * number)
    if sole is direct and sole.name == "divide" and _counts(by, sole, trace, window):
        return WindowSum(sole.result, False, 1.0)
    return WindowSum(None, True, float(count))


def _sole_user(operation: Operation, trace: OperationTrace) -> Operation | None:
    users = trace.users.get(operation.result, ())
    return users[0] if len(users) == 1 and operation.result not in trace.outputs else None


def _keeps(operation: Operation, trace: OperationTrace) -> bool:
    return math.prod(trace.types[operation.values[0]].shape) == math.prod(operation.shape)


def _counts(by: np.ndarray, divider: Operation, trace: OperationTrace, window: tuple[Pair, Geometry]) -> bool:
    """Return whether a constant is the number of positions inside, for each window."""
    (value,) = divider.values
    height, width, channels = trace.shape(value)
    source = trace.shape(trace.producers[value].values[0])
    size, geometry = window
    expected = window_counts(size, geometry.strides, geometry.padding, source, (height, width, channels))[:, :, None]
    counts = of_example(by, divider.shape, trace.layouts[divider.result])
    return bool(
        np.array_equal(counts.reshape(height, width, channels), np.broadcast_to(expected, (height, width, channels)))
    )
