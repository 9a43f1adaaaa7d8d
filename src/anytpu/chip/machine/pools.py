"""Pools: maximum and average over windows, vectorized over rows, one tap at a time."""

from __future__ import annotations

import functools

import numpy as np

from anytpu.chip.isa.design import UNIT_BYTES
from anytpu.chip.machine.memories import ChipMemories
from anytpu.chip.machine.steps import ActivateStep, BufferPlane, WindowRegisters
from anytpu.chip.machine.windows import Patch, inside, rows_at


def pool_numbers(memories: ChipMemories, step: ActivateStep, start: int, stop: int) -> np.ndarray:
    """Return rows `start` to `stop` of a pool before rounding, float32 `(rows, lanes)`.

    The lanes are those that both the source and the result have.
    """
    assert step.plane is not None and step.window is not None
    window, rows = step.window.later(start), stop - start
    patches = inside(window, rows)
    counts = positions_inside(window, rows)
    if step.operation == "max":
        return _maxima(memories.buffer, step, patches, counts)
    sums = _sums(memories.buffer, step, patches, rows)
    sums -= (counts * np.int32(step.zero_point))[:, None]
    numbers = sums.astype(np.float32)
    numbers *= _multiplier(step, counts)
    return numbers


def _sums(buffer: np.ndarray, step: ActivateStep, patches: tuple[Patch, ...], rows: int) -> np.ndarray:
    plane, lanes = _taken(step)
    sums = np.zeros((rows, lanes), np.int32)
    row_bytes = sums.strides[0]
    for patch in patches:
        target = rows_at(sums, np.int32, patch.row * row_bytes, row_bytes, patch.shape, patch.steps, lanes)
        target += _integers(buffer, plane, patch, lanes)
    return sums


def _taken(step: ActivateStep) -> tuple[BufferPlane, int]:
    """Return the source of a pool, and the number of lanes that it reads."""
    assert step.plane is not None
    return step.plane, min(step.plane.lanes, step.target.lanes)


def _multiplier(step: ActivateStep, counts: np.ndarray) -> np.ndarray | np.float32:
    scale = np.float32(step.scale)
    if not step.counted:
        return scale
    reciprocal = np.float32(1) / np.maximum(counts, 1).astype(np.float32)
    return (scale * reciprocal / np.float32(step.out_scale))[:, None]


def _maxima(buffer: np.ndarray, step: ActivateStep, patches: tuple[Patch, ...], counts: np.ndarray) -> np.ndarray:
    plane, lanes = _taken(step)
    wide = plane.high_offset is not None
    dtype = np.int32 if wide else np.int8
    result = np.full((len(counts), lanes), -32768 if wide else -128, dtype)
    row_bytes = result.strides[0]
    for patch in patches:
        target = rows_at(result, dtype, patch.row * row_bytes, row_bytes, patch.shape, patch.steps, lanes)
        np.maximum(target, _integers(buffer, plane, patch, lanes), out=target)
    numbers = result.astype(np.float32)
    numbers[counts == 0] = step.zero_point
    return numbers


def _integers(buffer: np.ndarray, plane: BufferPlane, patch: Patch, lanes: int) -> np.ndarray:
    """Return the rows of a patch, `(*patch.shape, lanes)`: a view of int8, or int32 combined from two bytes."""
    row_bytes = plane.pitch * UNIT_BYTES
    byte = plane.address * UNIT_BYTES + patch.source_row * row_bytes
    if plane.high_offset is None:
        return rows_at(buffer, np.int8, byte, row_bytes, patch.shape, patch.source_steps, lanes)
    low = rows_at(buffer, np.uint8, byte, row_bytes, patch.shape, patch.source_steps, lanes)
    byte += plane.high_offset * UNIT_BYTES
    high = rows_at(buffer, np.int8, byte, row_bytes, patch.shape, patch.source_steps, lanes)
    return high.astype(np.int32) * 256 + low


@functools.lru_cache(maxsize=32)
def positions_inside(window: WindowRegisters, rows: int) -> np.ndarray:
    """Return the number of positions of each row's window inside the source, int32 `(rows,)`."""
    patches = inside(window, rows)
    counts = np.zeros((rows, 1), np.int32)
    for patch in patches:
        rows_at(counts, np.int32, 4 * patch.row, 4, patch.shape, patch.steps, 1)[...] += 1
    counts.flags.writeable = False
    return counts[:, 0]
