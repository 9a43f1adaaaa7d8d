"""`accesses`: the address ranges of the memories that an instruction reads and writes.

Idea: two instructions of different units need a `Sync` between them if one writes an address that the other accesses.
The compiler inserts the Syncs, the checker finds missing ones, and the time model computes the waits. All three use
this function, and so agree.

Rule: a range is never too small. The rows of a plane are PITCH units apart, and the units between two rows count as
accessed. For a window, everything between its first and its last row of the source counts. Planes that are not adjacent
are separate ranges.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from anytpu.chip.isa.design import UNIT_BYTES, Design
from anytpu.chip.isa.instructions import (
    Activate,
    ArrayInstruction,
    Convolve,
    Instruction,
    ReadHostMemory,
    ReadWeights,
    WriteHostMemory,
)
from anytpu.chip.isa.issue import Registers
from anytpu.chip.isa.registers import Register


class Memory(enum.Enum):
    """A memory; the value is the meaning of its address."""

    HOST = "byte of the host's buffer"
    BUFFER = "unit of the Unified Buffer"
    ACCUMULATORS = "row of the accumulators"
    WEIGHTS = "block of the Weight Memory"
    TABLES = "table"


class AddressRange(NamedTuple):
    """Addresses of a memory from `start` up to `stop`, excluded."""

    memory: Memory
    start: int
    stop: int


class Accesses(NamedTuple):
    """The reads and writes of an instruction. FIFOs are not included: they order themselves (`tiles_popped`)."""

    reads: tuple[AddressRange, ...] = ()
    writes: tuple[AddressRange, ...] = ()


_PLACES = {
    Memory.HOST: ("byte", "bytes", " of the host's buffer"),
    Memory.BUFFER: ("unit", "units", " of the Unified Buffer"),
    Memory.ACCUMULATORS: ("row", "rows", " of the accumulators"),
    Memory.WEIGHTS: ("block", "blocks", " of the Weight Memory"),
    Memory.TABLES: ("table", "tables", ""),
}
_NOTHING = Accesses()


def accesses(instruction: Instruction, registers: Registers, design: Design) -> Accesses:
    """Return the reads and writes of an instruction, with the registers that it is issued with.

    The registers of its geometry must not be 0 (`anytpu.chip.checking` verifies this). The host's reads and writes at
    an `InterruptHost` are not accesses of the chip.

    Example:
        >>> from anytpu.chip.isa.design import TPU_V1
        >>> from anytpu.chip.isa.issue import RESET
        >>> accesses(ReadHostMemory(host_address=64, address=10, units=2), RESET, TPU_V1).writes
        (AddressRange(memory=<Memory.BUFFER: 'unit of the Unified Buffer'>, start=10, stop=12),)
    """
    if isinstance(instruction, ArrayInstruction):
        return _of_product(instruction, registers, design)
    if isinstance(instruction, Activate):
        return _of_activate(instruction, registers)
    if isinstance(instruction, ReadWeights):
        return _of_read_weights(instruction, design)
    if isinstance(instruction, ReadHostMemory | WriteHostMemory):
        host = _range(Memory.HOST, instruction.host_address, instruction.units * UNIT_BYTES)
        buffer = _range(Memory.BUFFER, instruction.address, instruction.units)
        return Accesses(host, buffer) if isinstance(instruction, ReadHostMemory) else Accesses(buffer, host)
    return _NOTHING


def range_text(memory: Memory, start: int, stop: int) -> str:
    """Write an address range of a memory.

    Example:
        >>> range_text(Memory.BUFFER, 3, 9), range_text(Memory.ACCUMULATORS, 3, 4)
        ('units 3 to 8 of the Unified Buffer', 'row 3 of the accumulators')
    """
    singular, many, where = _PLACES[memory]
    return f"{singular} {start}{where}" if stop == start + 1 else f"{many} {start} to {stop - 1}{where}"


def tiles_popped(instruction: Instruction) -> int:
    """Return how many tiles an instruction pops from the weight FIFO."""
    return instruction.repeat - instruction.keep if isinstance(instruction, ArrayInstruction) else 0


def parameters_popped(instruction: Instruction) -> int:
    """Return how many blocks of parameters an instruction pops from the parameter FIFO."""
    return int(isinstance(instruction, Activate) and instruction.operation == "scale" and not instruction.keep)


def blocks_of(instruction: ReadWeights, design: Design) -> int:
    """Return how many blocks of the Weight Memory each item that the instruction requests takes."""
    if instruction.kind == "tile":
        return design.tile_blocks
    if instruction.kind == "parameters":
        return design.parameter_blocks
    return 64 if instruction.wide else 1  # 65,536 numbers of 2 bytes, or 256 bytes, in blocks of 2,048


def _of_product(instruction: ArrayInstruction, registers: Registers, design: Design) -> Accesses:
    pitch = int(registers[Register.PITCH])
    if isinstance(instruction, Convolve):
        taps = int(registers[Register.TAPS])
        first = int(registers[Register.FIRST_TAP])
        rows = window_rows(instruction.rows, registers, first, first + instruction.repeat * taps)
        source = _plane(instruction.address, rows, pitch, -(-int(registers[Register.LANES]) // UNIT_BYTES))
    else:
        units = -(-design.array // UNIT_BYTES)
        source = _plane(instruction.address, (0, instruction.rows), pitch, units)
        source = _repeated(source, instruction.repeat, int(registers[Register.PLANE_STRIDE]))
    sums = _range(Memory.ACCUMULATORS, instruction.accumulator, instruction.rows)
    reads = _with_high(source, instruction.wide, registers[Register.HIGH_OFFSET])
    return Accesses(reads + sums if instruction.accumulate else reads, sums)


def _of_activate(instruction: Activate, registers: Registers) -> Accesses:
    pitch, out_pitch = int(registers[Register.PITCH]), int(registers[Register.OUT_PITCH])
    if instruction.operation == "scale":
        reads = _range(Memory.ACCUMULATORS, instruction.source, instruction.rows)
    else:
        rows = (0, instruction.rows)
        if instruction.operation in ("max", "average"):
            taps = int(registers[Register.KERNEL_HEIGHT]) * int(registers[Register.KERNEL_WIDTH])
            rows = window_rows(instruction.rows, registers, 0, taps)
        source = _plane(instruction.source, rows, pitch, out_pitch)
        reads = _with_high(source, instruction.wide, registers[Register.HIGH_OFFSET])
    if instruction.operation in ("add", "subtract", "multiply"):
        rows = (0, min(instruction.rows, int(registers[Register.SECOND_ROWS])))
        second = _plane(instruction.second, rows, int(registers[Register.SECOND_PITCH]), out_pitch)
        reads += _with_high(second, instruction.wide, registers[Register.SECOND_HIGH_OFFSET])
    if instruction.table:
        reads += _range(Memory.TABLES, int(registers[Register.TABLE]), 1)
    target = _plane(instruction.target, (0, instruction.rows), out_pitch, out_pitch)
    return Accesses(reads, _with_high(target, instruction.wide_out, registers[Register.OUT_HIGH_OFFSET]))


def _of_read_weights(instruction: ReadWeights, design: Design) -> Accesses:
    reads = _range(Memory.WEIGHTS, instruction.address, instruction.count * blocks_of(instruction, design))
    writes = _range(Memory.TABLES, instruction.slot, instruction.count) if instruction.kind == "table" else ()
    return Accesses(reads, writes)


def window_rows(rows: int, registers: Registers, first_tap: int, stop_tap: int) -> tuple[int, int]:
    """Return the first row of the source plane that a window reads, and the row after the last; equal when it has none.

    Args:
        rows: number of rows of the result, from FIRST_ROW on.
        registers: the registers, which hold the geometry.
        first_tap, stop_tap: range of taps, `stop_tap` excluded; taps past the window are ignored.
    """
    batch, out_width = int(registers[Register.BATCH]), int(registers[Register.OUT_WIDTH])
    in_width = int(registers[Register.IN_WIDTH])
    first_row = int(registers[Register.FIRST_ROW])
    top, left = divmod(first_row // batch, out_width)
    bottom, right = divmod((first_row + rows - 1) // batch, out_width)
    if top != bottom:
        left, right = 0, out_width - 1
    kernel_width = int(registers[Register.KERNEL_WIDTH])
    last_tap = min(stop_tap, int(registers[Register.KERNEL_HEIGHT]) * kernel_width) - 1
    high, column_first = divmod(first_tap, kernel_width)
    low, column_last = divmod(last_tap, kernel_width)
    if high != low:
        column_first, column_last = 0, kernel_width - 1
    first_h = _position(top, high, registers, Register.STRIDE_HEIGHT)
    last_h = _position(bottom, low, registers, Register.STRIDE_HEIGHT)
    first_w = _position(left, column_first, registers, Register.STRIDE_WIDTH)
    last_w = _position(right, column_last, registers, Register.STRIDE_WIDTH)
    first_h, last_h = max(first_h, 0), min(last_h, int(registers[Register.IN_HEIGHT]) - 1)
    first_w, last_w = max(first_w, 0), min(last_w, in_width - 1)
    if first_h > last_h or first_w > last_w:
        return 0, 0
    return (first_h * in_width + first_w) * batch, (last_h * in_width + last_w + 1) * batch


_OF_STRIDE = {
    Register.STRIDE_HEIGHT: (Register.PAD_TOP, Register.DILATION_HEIGHT),
    Register.STRIDE_WIDTH: (Register.PAD_LEFT, Register.DILATION_WIDTH),
}


def _position(out: int, tap: int, registers: Registers, stride: Register) -> int:
    pad, dilation = _OF_STRIDE[stride]
    return out * int(registers[stride]) - int(registers[pad]) + tap * int(registers[dilation])


def _range(memory: Memory, start: int, length: int) -> tuple[AddressRange, ...]:
    return (AddressRange(memory, start, start + length),)


def _plane(address: int, rows: tuple[int, int], pitch: int, units: int) -> tuple[AddressRange, ...]:
    first, stop = rows
    if first == stop:
        return ()
    return (AddressRange(Memory.BUFFER, address + first * pitch, address + (stop - 1) * pitch + min(pitch, units)),)


def _repeated(source: tuple[AddressRange, ...], repeat: int, stride: int) -> tuple[AddressRange, ...]:
    if repeat == 1:
        return source
    (plane,) = source
    if stride > plane.stop - plane.start:
        return tuple(
            AddressRange(plane.memory, plane.start + p * stride, plane.stop + p * stride) for p in range(repeat)
        )
    return (plane._replace(stop=plane.stop + (repeat - 1) * stride),)


def _with_high(source: tuple[AddressRange, ...], wide: bool, offset: int | float) -> tuple[AddressRange, ...]:
    if not wide:
        return source
    return source + tuple(AddressRange(s.memory, s.start + int(offset), s.stop + int(offset)) for s in source)
