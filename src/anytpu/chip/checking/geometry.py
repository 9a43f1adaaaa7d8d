"""`fault_in_geometry`: whether the fields of an instruction and the registers that it reads are consistent.

Idea: all registers are 0 at the start, and 0 is invalid for most of them. A register that was never set is reported
here, before anything divides by it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from anytpu.chip.isa.accesses import Accesses, AddressRange, Memory, out_units, range_text
from anytpu.chip.isa.design import UNIT_BYTES, Design
from anytpu.chip.isa.instructions import Activate, ArrayInstruction, Convolve, Instruction, MatrixMultiply
from anytpu.chip.isa.issue import Registers
from anytpu.chip.isa.registers import MAX_SCALE, Register, power_text

_WINDOW = (
    Register.BATCH,
    Register.IN_HEIGHT,
    Register.IN_WIDTH,
    Register.OUT_WIDTH,
    Register.KERNEL_HEIGHT,
    Register.KERNEL_WIDTH,
    Register.STRIDE_HEIGHT,
    Register.STRIDE_WIDTH,
)
_BINARY = ("add", "subtract", "multiply")
_POOLS = ("max", "average")
_MAX_PART_ROWS = 4096  # each is a range of its own in `AccessHistory`


def fault_in_geometry(
    instruction: Instruction, registers: Registers, is_set: Container[int], design: Design
) -> str | None:
    """Return the fault of an instruction, as the rest of a sentence, or None.

    Args:
        instruction: the instruction.
        registers: values of the registers when it is issued.
        is_set: the registers that were set before it.
        design: the chip.
    """
    if not isinstance(instruction, ArrayInstruction | Activate):
        return None
    for register in needed(instruction, registers):
        # PLANE_STRIDE 0 multiplies the same plane in each pass. That is valid if the program sets it explicitly.
        is_explicit = register is Register.PLANE_STRIDE and register in is_set
        if registers[register] == 0 and not is_explicit:
            return (
                f"uses the register {register.name}, which is 0. Set it before: set_configuration {register.name}, ..."
            )
    if isinstance(instruction, Convolve):
        return _fault_in_window(instruction, registers, design)
    if isinstance(instruction, Activate):
        return (
            _fault_in_lanes(instruction, registers, design)
            or _fault_in_count(instruction, registers)
            or _fault_in_clip(instruction, registers, is_set)
        )
    return None


def needed(instruction: Instruction, registers: Registers) -> tuple[Register, ...]:
    """Return the registers that an instruction uses and that must not be 0."""
    if isinstance(instruction, MatrixMultiply):
        used = (Register.PITCH, Register.PLANE_STRIDE) if instruction.repeat > 1 else (Register.PITCH,)
    elif isinstance(instruction, Convolve):
        used = (Register.PITCH, Register.LANES, Register.TAPS, *_WINDOW, *_dilation(registers))
    elif isinstance(instruction, Activate):
        used = _needed_by_activate(instruction, registers)
    else:
        return ()
    if isinstance(instruction, ArrayInstruction | Activate) and instruction.wide:
        used += (Register.HIGH_OFFSET,)
    return used


def _needed_by_activate(instruction: Activate, registers: Registers) -> tuple[Register, ...]:
    used = (Register.OUT_PITCH,)
    if instruction.operation != "scale":
        used += (Register.PITCH,)
    if instruction.operation in _BINARY:
        used += (Register.SECOND_PITCH, Register.SECOND_ROWS)
        used += (Register.SCALE, Register.SECOND_SCALE, Register.OUT_SCALE)
        used += (Register.SECOND_HIGH_OFFSET,) if instruction.wide else ()
    if instruction.operation in _POOLS:
        used += (*_WINDOW, *_dilation(registers))
    if instruction.operation == "average":
        used += (Register.SCALE, Register.OUT_SCALE) if instruction.counted else (Register.SCALE,)
    return used + ((Register.OUT_HIGH_OFFSET,) if instruction.wide_out else ())


def _dilation(registers: Registers) -> tuple[Register, ...]:
    # A window with one tap along an axis does not use the dilation of that axis.
    height = (Register.DILATION_HEIGHT,) if registers[Register.KERNEL_HEIGHT] > 1 else ()
    return height + ((Register.DILATION_WIDTH,) if registers[Register.KERNEL_WIDTH] > 1 else ())


def _fault_in_window(instruction: Convolve, registers: Registers, design: Design) -> str | None:
    lanes, taps = int(registers[Register.LANES]), int(registers[Register.TAPS])
    pitch = int(registers[Register.PITCH])
    if lanes > pitch * UNIT_BYTES:
        return f"takes LANES = {lanes} lanes of rows that have {pitch * UNIT_BYTES} (PITCH = {pitch})."
    if lanes * taps > design.array:
        return f"packs TAPS = {taps} taps of LANES = {lanes} lanes, and the array has {design.array} rows."
    window = int(registers[Register.KERNEL_HEIGHT]) * int(registers[Register.KERNEL_WIDTH])
    last = int(registers[Register.FIRST_TAP]) + (instruction.repeat - 1) * taps
    if last >= window:
        return f"starts its last pass with tap {last}, and the window has {window} taps, from 0 on."
    return None if instruction.wide else _fault_in_fill(instruction, int(registers[Register.ZERO_POINT]))


def _fault_in_fill(instruction: Convolve, fill: int) -> str | None:
    minimum, maximum = (0, 255) if instruction.unsigned else (-128, 127)
    if minimum <= fill <= maximum:
        return None
    return f"reads ZERO_POINT = {fill} outside of a source that holds {minimum} to {maximum}."


def _fault_in_lanes(instruction: Activate, registers: Registers, design: Design) -> str | None:
    lane, pitch = int(registers[Register.SOURCE_LANE]), int(registers[Register.OUT_PITCH])
    if instruction.operation == "scale" and lane >= design.array:
        return f"reads sums from SOURCE_LANE = {lane} on, and the array has {design.array} lanes, from 0 on."
    if out_units(registers) > pitch:
        return f"writes OUT_UNITS = {out_units(registers)} units of rows that have {pitch} (OUT_PITCH = {pitch})."
    if out_units(registers) < pitch and instruction.rows > _MAX_PART_ROWS:
        return f"writes a part of {instruction.rows} rows, which may be at most {_MAX_PART_ROWS}: OUT_UNITS is not 0."
    return None


def _fault_in_count(instruction: Activate, registers: Registers) -> str | None:
    if not instruction.counted:
        return None
    if instruction.operation != "average":
        return "is .counted, and only an average counts the positions of its window. Leave out .counted."
    scale, out_scale = float(registers[Register.SCALE]), float(registers[Register.OUT_SCALE])
    if scale / out_scale <= MAX_SCALE:
        return None
    maximum = power_text(MAX_SCALE)
    return f"multiplies with SCALE / OUT_SCALE = {scale!r} / {out_scale!r}, which must be at most {maximum}."


def _fault_in_clip(instruction: Activate, registers: Registers, is_set: Container[int]) -> str | None:
    low, high = int(registers[Register.LOW]), int(registers[Register.HIGH])
    minimum, maximum = (-32768, 32767) if instruction.wide_out else (-128, 127)
    for register in (Register.LOW, Register.HIGH):
        if register not in is_set:
            return (
                f"clips to {register.name}, which was never set. The whole range is LOW = {minimum}, HIGH = {maximum}."
            )
    if not minimum <= low <= high <= maximum:
        return f"clips to LOW = {low} and HIGH = {high}, which must lie in order within {minimum} to {maximum}."
    return None


def fault_in_overwrite(instruction: Activate, registers: Registers, touched: Accesses) -> str | None:
    """Return the fault of an Activate that overwrites unread source rows or its own result, or None.

    In-place operation is valid only if row i of an operand and row i of the result have the same address.
    """
    writes = touched.writes
    if instruction.wide_out:
        low, high = _joined(writes[: len(writes) // 2]), _joined(writes[len(writes) // 2 :])
        writes = low, high
        if high.start < low.stop:
            twice, minimum = range_text(Memory.BUFFER, high.start, low.stop), low.stop - low.start
            offset = f"OUT_HIGH_OFFSET must be {minimum} or more, not {high.start - low.start}"
            return f"writes {twice} twice, with low bytes and with high ones: {offset}."
    if instruction.operation == "scale":
        return None
    writes = writes if instruction.wide_out else (_joined(writes),)
    planes = 2 if instruction.wide else 1
    repeats = int(registers[Register.SECOND_ROWS]) < instruction.rows
    # Reads come in order: planes of the source, then those of the second operand.
    for index, read in enumerate(touched.reads):
        if read.memory is not Memory.BUFFER:
            continue
        is_second = index >= planes
        pitch = registers[Register.SECOND_PITCH if is_second else Register.PITCH]
        is_row_by_row = instruction.operation not in _POOLS and pitch == registers[Register.OUT_PITCH]
        is_row_by_row = is_row_by_row and not (is_second and repeats)
        for write in writes:
            overlaps = read.start < write.stop and write.start < read.stop
            if overlaps and not (is_row_by_row and read.start == write.start):
                first, stop = max(read.start, write.start), min(read.stop, write.stop)
                return f"writes units {first} to {stop - 1} of the Unified Buffer before it has read them all."
    return None


def _joined(writes: Sequence[AddressRange]) -> AddressRange:
    """Return the range from the first to the last of some ranges in order."""
    return writes[0]._replace(stop=writes[-1].stop)
