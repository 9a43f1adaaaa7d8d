"""The activation unit: requantization of sums, elementwise operations and pools.

Rule: everything here is float32, with one rounding an operation, as `isa/instructions.py` specifies and numpy does.
Infinities are clipped like all values out of range. Rows are processed in blocks that fit in a core's cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anytpu.chip.isa.accesses import out_units
from anytpu.chip.isa.design import BLOCK_BYTES, UNIT_BYTES
from anytpu.chip.isa.instructions import Activate
from anytpu.chip.isa.registers import Register
from anytpu.chip.machine import workers
from anytpu.chip.machine.decoding import Step
from anytpu.chip.machine.memories import ChipMemories, plane_rows
from anytpu.chip.machine.pools import pool_numbers

BLOCK_NUMBERS = 2**16
"""Number of values in a block."""

_PAIRS: dict[str, Callable] = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}


def activate(memories: ChipMemories, step: Step) -> None:
    """Carry out an `Activate`."""
    instruction = step.instruction
    assert isinstance(instruction, Activate)
    lanes = out_units(step.registers) * UNIT_BYTES
    block = max(1, BLOCK_NUMBERS // lanes)

    def work(start: int) -> None:
        stop = min(start + block, instruction.rows)
        with np.errstate(over="ignore"):
            made = _numbers(memories, step, instruction, start, stop, lanes)
            if made.shape[1] < lanes:  # lanes that the source or the array lacks are 0
                made = np.pad(made, ((0, 0), (0, lanes - made.shape[1])))
            if instruction.operation not in ("copy", "max"):
                np.rint(made, out=made)
                made += np.float32(step.integer(Register.OUT_ZERO_POINT))
            _store(memories, step, instruction, made, start)

    workers.share(range(0, instruction.rows, block), work)


def _numbers(
    memories: ChipMemories, step: Step, instruction: Activate, start: int, stop: int, lanes: int
) -> np.ndarray:
    """Return the values of step 1 of an `Activate` for some rows, float32 `(rows, at most lanes)`."""
    if instruction.operation == "scale":
        return _scaled(memories, step, instruction, start, stop, lanes)
    lanes = min(lanes, step.integer(Register.PITCH) * UNIT_BYTES)
    if instruction.operation in ("max", "average"):
        return pool_numbers(memories.buffer, step, start, stop, lanes)
    rows = slice(start, stop)
    first = _integers(memories, step, instruction.source, Register.PITCH, Register.HIGH_OFFSET, rows, lanes)
    if instruction.operation == "copy":
        return first
    return _combined(memories, step, instruction, first, rows)


def _scaled(memories: ChipMemories, step: Step, instruction: Activate, start: int, stop: int, lanes: int) -> np.ndarray:
    first, array = step.integer(Register.SOURCE_LANE), memories.accumulators.shape[1]
    taken = slice(first, min(first + lanes, array))
    bias, multiplier = parameters_at(memories.weights, step.parameters, array)
    sums = memories.accumulators[instruction.source + start : instruction.source + stop, taken] + bias[taken]
    return sums.astype(np.float32) * multiplier[taken]


def _combined(memories: ChipMemories, step: Step, instruction: Activate, first: np.ndarray, rows: slice) -> np.ndarray:
    lanes, count = first.shape[1], step.integer(Register.SECOND_ROWS)
    lanes = min(lanes, step.integer(Register.SECOND_PITCH) * UNIT_BYTES)
    taken = rows if count >= instruction.rows else np.arange(rows.start, rows.stop) % count
    second = _integers(
        memories, step, instruction.second, Register.SECOND_PITCH, Register.SECOND_HIGH_OFFSET, taken, lanes
    )
    first = first[:, :lanes]
    # Differences of 16 bits are exact, so that the first rounding is that of the product with the scale.
    first -= np.float32(step.integer(Register.ZERO_POINT))
    second -= np.float32(step.integer(Register.SECOND_ZERO_POINT))
    first *= np.float32(step.registers[Register.SCALE])
    second *= np.float32(step.registers[Register.SECOND_SCALE])
    _PAIRS[instruction.operation](first, second, out=first)
    first /= np.float32(step.registers[Register.OUT_SCALE])
    return first


def _integers(
    memories: ChipMemories,
    step: Step,
    address: int,
    pitch: Register,
    high_offset: Register,
    rows: slice | np.ndarray,
    lanes: int,
) -> np.ndarray:
    """Return rows of an 8-bit or 16-bit operand as float32, `(rows, lanes)`."""
    units, instruction = step.integer(pitch), step.instruction
    assert isinstance(instruction, Activate)
    if not instruction.wide:
        return plane_rows(memories.buffer, address, units, lanes, np.int8)[rows, 0].astype(np.float32)
    high = address + step.integer(high_offset)
    numbers = plane_rows(memories.buffer, high, units, lanes, np.int8)[rows, 0].astype(np.float32)
    numbers *= np.float32(256)
    numbers += plane_rows(memories.buffer, address, units, lanes, np.uint8)[rows, 0]
    return numbers


def _store(memories: ChipMemories, step: Step, instruction: Activate, numbers: np.ndarray, row: int) -> None:
    """Clip, look up, and write rows `row` and following of a result; `numbers` is changed in place."""
    # 1. Clip.
    low, high = step.integer(Register.LOW), step.integer(Register.HIGH)
    np.clip(numbers, np.float32(low), np.float32(high), out=numbers)
    # 2. Table lookup, and conversion to integers.
    if instruction.table:
        table = memories.tables[step.integer(Register.TABLE)]
        numbers += np.float32(len(table) // 2)
        integers = table[numbers.astype(np.uint16)]
    else:
        integers = numbers.astype("<i2") if instruction.wide_out else numbers
    # 3. Store the low bytes, and the high bytes of a 16-bit result.
    pitch, rows = step.integer(Register.OUT_PITCH), slice(row, row + len(numbers))
    lanes = numbers.shape[1]
    plane = plane_rows(memories.buffer, instruction.target, pitch, lanes, np.int8)[:, 0]
    if not instruction.wide_out:
        plane[rows] = integers
        return
    pairs = integers.view(np.int8).reshape(*integers.shape, 2)
    plane[rows] = pairs[..., 0]
    offset = step.integer(Register.OUT_HIGH_OFFSET)
    plane_rows(memories.buffer, instruction.target + offset, pitch, lanes, np.int8)[rows, 0] = pairs[..., 1]


def parameters_at(weights: np.ndarray, block: int, array: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the biases, int32, and the multipliers, float32, that start at a block of the Weight Memory."""
    start = block * BLOCK_BYTES
    numbers = weights[start : start + 8 * array].reshape(2, 4 * array)
    return numbers[0].view("<i4"), numbers[1].view("<f4")
