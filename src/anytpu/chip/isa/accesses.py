"""`accesses`: the address ranges of the memories that an instruction reads and writes.

Idea: two instructions of different units need a `Sync` between them if one writes an address that the other accesses.
The compiler inserts the Syncs, the checker finds missing ones, and the time model computes the waits. All three use
this function, and so agree.

Rule: a range is never too small. The rows of a plane are PITCH units apart, and the units between two rows count as
accessed. Only the parts of rows that OUT_UNITS selects are ranges of their own. For a window, everything between its
first and its last row of the source counts. Planes that are not adjacent are separate ranges.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from anytpu.chip.isa.design import UNIT_BYTES, Design
from anytpu.chip.isa.geometry import Window
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


class AccessedInstruction(NamedTuple):
    """An instruction, and its reads and writes."""

    instruction: Instruction
    accesses: Accesses


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


def out_units(registers: Registers) -> int:
    """Return the units of each result row that an `Activate` writes."""
    return int(registers[Register.OUT_UNITS] or registers[Register.OUT_PITCH])


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
        rows = Window.of(registers).row_range(instruction.rows, first, first + instruction.repeat * taps)
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
    units = out_units(registers)
    if instruction.operation == "scale":
        reads = _range(Memory.ACCUMULATORS, instruction.source, instruction.rows)
    else:
        rows = (0, instruction.rows)
        if instruction.operation in ("max", "average"):
            window = Window.of(registers)
            rows = window.row_range(instruction.rows, 0, window.taps)
        source = _plane(instruction.source, rows, pitch, units)
        reads = _with_high(source, instruction.wide, registers[Register.HIGH_OFFSET])
    if instruction.operation in ("add", "subtract", "multiply"):
        rows = (0, min(instruction.rows, int(registers[Register.SECOND_ROWS])))
        second = _plane(instruction.second, rows, int(registers[Register.SECOND_PITCH]), units)
        reads += _with_high(second, instruction.wide, registers[Register.SECOND_HIGH_OFFSET])
    if instruction.table:
        reads += _range(Memory.TABLES, int(registers[Register.TABLE]), 1)
    target = _plane(instruction.target, (0, instruction.rows), out_pitch, out_pitch)
    if units < out_pitch:  # The units between are not written, and a later read of them would be a fault.
        starts = range(instruction.target, instruction.target + instruction.rows * out_pitch, out_pitch)
        target = tuple(AddressRange(Memory.BUFFER, start, start + units) for start in starts)
    return Accesses(reads, _with_high(target, instruction.wide_out, registers[Register.OUT_HIGH_OFFSET]))


def _of_read_weights(instruction: ReadWeights, design: Design) -> Accesses:
    reads = _range(Memory.WEIGHTS, instruction.address, instruction.count * blocks_of(instruction, design))
    writes = _range(Memory.TABLES, instruction.slot, instruction.count) if instruction.kind == "table" else ()
    return Accesses(reads, writes)


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
