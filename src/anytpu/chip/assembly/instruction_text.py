"""`write_instruction`: an instruction as a line of assembly."""

from __future__ import annotations

import struct

import numpy as np

from anytpu.chip.isa.forms import Field, FieldKind, Form, form_of
from anytpu.chip.isa.instructions import Instruction
from anytpu.chip.isa.registers import Register
from anytpu.chip.isa.units import Unit

_FEW = 2  # operands that are clear without their names


def write_instruction(instruction: Instruction) -> str:
    """Return an instruction as a line of assembly.

    Example:
        >>> from anytpu.chip.isa.instructions import MatrixMultiply, Sync
        >>> write_instruction(MatrixMultiply(64, 0, 200, repeat=4, accumulate=True))
        'matrix_multiply.accumulate address=64, accumulator=0, rows=200, repeat=4'
        >>> write_instruction(Sync(waiting=4, finished=9))
        'sync matrix, read|activate'
    """
    form = form_of(instruction)
    named = [field for field in form.operands if not _is_default(form, field, instruction)]
    words = [_value(field, instruction) for field in named]
    if len(form.operands) > _FEW:
        words = [f"{field.name}={word}" for field, word in zip(named, words, strict=True)]
    head = form.mnemonic + "".join(_suffix(form, field, instruction) for field in form.suffixes)
    return f"{head} {', '.join(words)}".rstrip()


def _is_default(form: Form, field: Field, instruction: Instruction) -> bool:
    return field.name in form.defaults and getattr(instruction, field.name) == form.defaults[field.name]


def _suffix(form: Form, field: Field, instruction: Instruction) -> str:
    value = getattr(instruction, field.name)
    if field.kind is FieldKind.FLAG:
        return f".{field.name}" if value else ""
    return f".{value}"


def _value(field: Field, instruction: Instruction) -> str:
    value = getattr(instruction, field.name)
    if field.kind is FieldKind.UNITS:
        return "|".join(unit.name.lower() for unit in Unit if value >> unit & 1)
    if field.kind is FieldKind.REGISTER:
        return Register(value).name
    return _shortest(value) if isinstance(value, float) else str(int(value))


def _shortest(value: float) -> str:
    short = str(np.float32(value))
    # The assembler parses a float64 and rounds it to float32; near a tie, the short text may give another float32.
    is_same = struct.unpack("<f", struct.pack("<f", float(short)))[0] == value
    return short if is_same else repr(value)
