"""The activation unit: requantization of sums, elementwise operations and pools.

Rule: everything here is float32, with one rounding an operation, as `isa/instructions.py` specifies and numpy does.
Infinities are clipped like all values out of range. Rows are processed in blocks that fit in a core's cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anytpu.chip.isa.design import BLOCK_BYTES, UNIT_BYTES
from anytpu.chip.machine import workers
from anytpu.chip.machine.memories import ChipMemories
from anytpu.chip.machine.pools import pool_numbers
from anytpu.chip.machine.steps import ActivateStep, BufferPlane
from anytpu.chip.machine.windows import rows_at

BLOCK_NUMBERS = 2**16
"""Number of values in a block."""

_INTEGER = ("copy", "max")


def activate(memories: ChipMemories, step: ActivateStep) -> None:
    """Carry out an `Activate`."""
    block = max(1, BLOCK_NUMBERS // step.target.lanes)
    numbers = _NUMBERS[step.operation]

    def work(start: int) -> None:
        with np.errstate(over="ignore"):
            made = numbers(memories, step, start, min(start + block, step.rows))
            if step.operation not in _INTEGER:
                np.rint(made, out=made)
            finish(memories, step, made, start)

    workers.share(range(0, step.rows, block), work)


def finish(
    memories: ChipMemories, step: ActivateStep, numbers: np.ndarray, row: int, lane: int = 0, rows: int | None = None
) -> None:
    """Add the zero point, clip, look up, and write the result of an Activate to the Unified Buffer.

    Args:
        memories: the memories of the chip.
        step: the Activate.
        numbers: the rounded results of its operation, float32 `(rows, lanes)`; changed in place.
        row, lane: the row and the lane of the result where they start.
        rows: number of rows to write, if `numbers` is one row for all; None: as many as `numbers` has.
    """
    # 1. Zero point and clip.
    if step.out_zero_point and step.operation not in _INTEGER:
        numbers += np.float32(step.out_zero_point)
    np.clip(numbers, np.float32(step.low), np.float32(step.high), out=numbers)
    # 2. Table lookup, and conversion to integers.
    rows, lanes = rows or len(numbers), slice(lane, lane + numbers.shape[1])
    low = _rows_view(memories.buffer, step.target, row, rows, step.target.lanes)[:, lanes]
    if step.table is not None:
        table = memories.tables[step.table]
        numbers += np.float32(len(table) // 2)
        integers = table[numbers.astype(np.uint16)]
    elif step.target.high_offset is None:
        low[...] = numbers
        return
    else:
        integers = numbers.astype("<i2")
    # 3. Store the low bytes, and the high bytes of a 16-bit result.
    if step.target.high_offset is None:
        low[...] = integers
        return
    pairs = integers.view(np.int8).reshape(*integers.shape, 2)
    low[...] = pairs[..., 0]
    _rows_view(memories.buffer, step.target, row, rows, step.target.lanes, high=True)[:, lanes] = pairs[..., 1]


def _rows_view(
    buffer: np.ndarray, plane: BufferPlane, start: int, rows: int, lanes: int, dtype: type = np.int8, high: bool = False
) -> np.ndarray:
    """Return the first lanes of rows `start` and following of a plane, bytes `(rows, lanes)`, a view."""
    first = (plane.address + (plane.high_offset or 0 if high else 0) + start * plane.pitch) * UNIT_BYTES
    return rows_at(buffer, dtype, first, plane.lanes, (1, 1, rows), (0, 0, 1), lanes)[0, 0]


def _read_integers(buffer: np.ndarray, plane: BufferPlane, start: int, rows: int, maximum: int) -> np.ndarray:
    """Return rows of an 8-bit or 16-bit plane as float32, `(rows, lanes)`, with at most `maximum` lanes."""
    lanes = min(plane.lanes, maximum)
    if plane.high_offset is None:
        return _rows_view(buffer, plane, start, rows, lanes).astype(np.float32)
    numbers = _rows_view(buffer, plane, start, rows, lanes, high=True).astype(np.float32)
    numbers *= np.float32(256)
    numbers += _rows_view(buffer, plane, start, rows, lanes, np.uint8)
    return numbers


def parameters_at(weights: np.ndarray, block: int, array: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the biases, int32, and the multipliers, float32, that start at a block of the Weight Memory."""
    start = block * BLOCK_BYTES
    numbers = weights[start : start + 8 * array].reshape(2, 4 * array)
    return numbers[0].view("<i4"), numbers[1].view("<f4")


def _scale(memories: ChipMemories, step: ActivateStep, start: int, stop: int) -> np.ndarray:
    array = memories.accumulators.shape[1]
    lanes = min(array, step.target.lanes)
    bias, multiplier = parameters_at(memories.weights, step.parameters, array)
    sums = memories.accumulators[step.accumulator + start : step.accumulator + stop, :lanes] + bias[:lanes]
    numbers = np.zeros((stop - start, step.target.lanes), np.float32)
    np.multiply(sums.astype(np.float32), multiplier[:lanes], out=numbers[:, :lanes])
    return numbers


def _copy(memories: ChipMemories, step: ActivateStep, start: int, stop: int) -> np.ndarray:
    assert step.plane is not None
    return _fitted(_read_integers(memories.buffer, step.plane, start, stop - start, step.target.lanes), step)


def _pair(operation: Callable) -> Callable:
    def numbers(memories: ChipMemories, step: ActivateStep, start: int, stop: int) -> np.ndarray:
        assert step.plane is not None and step.second is not None
        first = _read_integers(memories.buffer, step.plane, start, stop - start, step.target.lanes)
        second = _second(memories, step, step.second, start, stop)
        # Differences of 16 bits are exact, so that the first rounding is that of the product with the scale.
        first -= np.float32(step.zero_point)
        second -= np.float32(step.second_zero_point)
        lanes = min(first.shape[1], second.shape[1])
        first, second = first[:, :lanes], second[:, :lanes]
        first *= np.float32(step.scale)
        second *= np.float32(step.second_scale)
        operation(first, second, out=first)
        first /= np.float32(step.out_scale)
        return _fitted(first, step)

    return numbers


def _second(memories: ChipMemories, step: ActivateStep, plane: BufferPlane, start: int, stop: int) -> np.ndarray:
    if step.second_rows >= step.rows:
        return _read_integers(memories.buffer, plane, start, stop - start, step.target.lanes)
    whole = _read_integers(memories.buffer, plane, 0, step.second_rows, step.target.lanes)
    return whole[np.arange(start, stop) % step.second_rows]


def _pool(memories: ChipMemories, step: ActivateStep, start: int, stop: int) -> np.ndarray:
    return _fitted(pool_numbers(memories, step, start, stop), step)


def _fitted(numbers: np.ndarray, step: ActivateStep) -> np.ndarray:
    """Pad the values with lanes of 0, up to the number of lanes of the result."""
    missing = step.target.lanes - numbers.shape[1]
    return np.pad(numbers, ((0, 0), (0, missing))) if missing else numbers


_NUMBERS: dict[str, Callable[[ChipMemories, ActivateStep, int, int], np.ndarray]] = {
    "scale": _scale,
    "copy": _copy,
    "add": _pair(np.add),
    "subtract": _pair(np.subtract),
    "multiply": _pair(np.multiply),
    "max": _pool,
    "average": _pool,
}
