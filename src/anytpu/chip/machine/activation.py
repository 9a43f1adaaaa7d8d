"""The activation unit: sums become integers again, and what is done number by number.

Rule: everything here is float32, one rounding an operation, as `isa/instructions.py` says; numpy keeps to that. Rows
are worked on in blocks that fit in a core's cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anytpu.chip.design import BLOCK_BYTES, UNIT_BYTES
from anytpu.chip.machine.memories import Memories
from anytpu.chip.machine.pools import pool_numbers
from anytpu.chip.machine.steps import ActivateStep, Plane

BLOCK_NUMBERS = 2**16
"""Numbers that are worked on at a time."""


def activate(memories: Memories, step: ActivateStep) -> None:
    """Carry out an `Activate`."""
    block = max(1, BLOCK_NUMBERS // step.target.lanes)
    numbers = _NUMBERS[step.operation]
    if step.operation in ("max", "average"):
        block = step.rows
    with np.errstate(over="ignore"):  # what is infinite is clipped like all that is too great
        for start in range(0, step.rows, block):
            stop = min(start + block, step.rows)
            _store(memories, step, start, _integers(memories, step, numbers(memories, step, start, stop)))


def _integers(memories: Memories, step: ActivateStep, numbers: np.ndarray) -> np.ndarray:
    """Return the integers of the result, of the numbers that its operation made: float32 `(rows, lanes)`."""
    if step.operation not in ("copy", "max"):
        np.rint(numbers, out=numbers)
        numbers += np.float32(step.out_zero_point)
    np.minimum(np.maximum(numbers, np.float32(step.low), out=numbers), np.float32(step.high), out=numbers)
    if step.table is None:
        return numbers.astype(np.int32)
    table = memories.tables[step.table]
    return table[numbers.astype(np.int32) + len(table) // 2]


def _store(memories: Memories, step: ActivateStep, start: int, integers: np.ndarray) -> None:
    target, lanes = step.target, integers.shape[1]
    rows_view(memories.buffer, target, start, len(integers), np.uint8)[:, :lanes] = integers.astype(np.uint8)
    if target.high_offset is not None:
        rows_view(memories.buffer, target, start, len(integers), np.uint8, True)[:, :lanes] = integers >> 8


def rows_view(
    buffer: np.ndarray, plane: Plane, start: int, rows: int, dtype: type = np.int8, high: bool = False
) -> np.ndarray:
    """Return rows `start` and following of a plane, bytes `(rows, lanes)`, a view."""
    first = (plane.address + (plane.high_offset or 0 if high else 0) + start * plane.pitch) * UNIT_BYTES
    return buffer[first : first + rows * plane.lanes].view(dtype).reshape(rows, plane.lanes)


def read_integers(buffer: np.ndarray, plane: Plane, start: int, rows: int) -> np.ndarray:
    """Return rows of a plane as int32 `(rows, lanes)`, of 8 or of 16 bits."""
    if plane.high_offset is None:
        return rows_view(buffer, plane, start, rows).astype(np.int32)
    high = rows_view(buffer, plane, start, rows, np.int8, True).astype(np.int32)
    return high * 256 + rows_view(buffer, plane, start, rows, np.uint8)


def _scale(memories: Memories, step: ActivateStep, start: int, stop: int) -> np.ndarray:
    array = memories.accumulators.shape[1]
    first = step.parameters * BLOCK_BYTES
    lanes = min(array, step.target.lanes)
    bias = memories.weights[first : first + 4 * array].view("<i4")[:lanes]
    multiplier = memories.weights[first + 4 * array : first + 8 * array].view("<f4")[:lanes]
    sums = memories.accumulators[step.accumulator + start : step.accumulator + stop, :lanes] + bias
    numbers = np.zeros((stop - start, step.target.lanes), np.float32)
    np.multiply(sums.astype(np.float32), multiplier, out=numbers[:, :lanes])
    return numbers


def _copy(memories: Memories, step: ActivateStep, start: int, stop: int) -> np.ndarray:
    assert step.plane is not None
    return _fitted(read_integers(memories.buffer, step.plane, start, stop - start).astype(np.float32), step)


def _pair(operation: Callable) -> Callable:
    def numbers(memories: Memories, step: ActivateStep, start: int, stop: int) -> np.ndarray:
        assert step.plane is not None and step.second is not None
        first = read_integers(memories.buffer, step.plane, start, stop - start) - step.zero_point
        if step.second_rows >= step.rows:
            second = read_integers(memories.buffer, step.second, start, stop - start)
        else:
            rows = np.arange(start, stop) % step.second_rows
            second = read_integers(memories.buffer, step.second, 0, step.second_rows)[rows]
        second = second - step.second_zero_point
        lanes = min(first.shape[1], second.shape[1])
        left = first[:, :lanes].astype(np.float32) * np.float32(step.scale)
        right = second[:, :lanes].astype(np.float32) * np.float32(step.second_scale)
        return _fitted(operation(left, right) / np.float32(step.out_scale), step)

    return numbers


def _pool(memories: Memories, step: ActivateStep, start: int, stop: int) -> np.ndarray:
    return _fitted(pool_numbers(memories, step), step)


def _fitted(numbers: np.ndarray, step: ActivateStep) -> np.ndarray:
    """Return the numbers with as many lanes as the result has: the others left out, those that are missing 0."""
    lanes = step.target.lanes
    if numbers.shape[1] >= lanes:
        return numbers[:, :lanes]
    return np.pad(numbers, ((0, 0), (0, lanes - numbers.shape[1])))


_NUMBERS: dict[str, Callable[[Memories, ActivateStep, int, int], np.ndarray]] = {
    "scale": _scale,
    "copy": _copy,
    "add": _pair(np.add),
    "subtract": _pair(np.subtract),
    "multiply": _pair(np.multiply),
    "max": _pool,
    "average": _pool,
}
