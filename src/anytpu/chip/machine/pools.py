"""Pools: maximum and average over windows, vectorized over rows, one tap at a time."""

from __future__ import annotations

import numpy as np

from anytpu.chip.isa.geometry import Window, sources
from anytpu.chip.isa.instructions import Activate
from anytpu.chip.isa.registers import Register
from anytpu.chip.machine.decoding import Step
from anytpu.chip.machine.memories import plane_rows


def pool_numbers(buffer: np.ndarray, step: Step, start: int, stop: int, lanes: int) -> np.ndarray:
    """Return rows `start` to `stop` of a pool before rounding, float32 `(rows, lanes)`.

    Args:
        buffer: the Unified Buffer.
        step: the pool.
        start, stop: range of rows of its result, `stop` excluded.
        lanes: number of lanes that both the source and the result have.
    """
    pool = step.instruction
    assert isinstance(pool, Activate)
    is_max, dtype = pool.operation == "max", np.int32 if pool.wide or pool.operation == "average" else np.int8
    made = np.full((stop - start, lanes), (-32768 if pool.wide else -128) if is_max else 0, dtype)
    counts = np.zeros(stop - start, np.int32)
    window = Window.of(step.registers).later(start)
    group = window.group(stop - start)
    low, high = _planes(buffer, step, pool, lanes, group)
    targets, inside_counts = made.reshape(-1, group, lanes), counts.reshape(-1, group)
    for tap in window.taps_inside(stop - start):
        indices, inside = sources(window, stop - start, tap)
        numbers = low[indices]
        if high is not None:
            numbers = high[indices].astype(np.int32) * 256 + numbers
        targets[inside] = np.maximum(targets[inside], numbers) if is_max else targets[inside] + numbers
        inside_counts[inside] += 1
    zero_point = step.integer(Register.ZERO_POINT)
    if is_max:
        made = made.astype(np.float32)
        made[counts == 0] = zero_point
        return made
    made -= (counts * np.int32(zero_point))[:, None]
    return made.astype(np.float32) * _multiplier(step, pool, counts)


def _planes(
    buffer: np.ndarray, step: Step, pool: Activate, lanes: int, group: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the low bytes of the source and, for 16 bits, its high bytes."""
    pitch = step.integer(Register.PITCH)
    low = plane_rows(buffer, pool.source, pitch, lanes, np.uint8 if pool.wide else np.int8, group)
    offset = step.integer(Register.HIGH_OFFSET)
    return low, plane_rows(buffer, pool.source + offset, pitch, lanes, np.int8, group) if pool.wide else None


def _multiplier(step: Step, pool: Activate, counts: np.ndarray) -> np.ndarray | np.float32:
    scale = np.float32(step.registers[Register.SCALE])
    if not pool.counted:
        return scale
    reciprocal = np.float32(1) / np.maximum(counts, 1).astype(np.float32)
    return (scale * reciprocal / np.float32(step.registers[Register.OUT_SCALE]))[:, None]
