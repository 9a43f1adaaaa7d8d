"""`read_instruction`: parse a line with a mnemonic, its suffixes and its operands."""

from __future__ import annotations

import struct
from typing import Any

from anytpu.chip.assembly.line import Head, SourceLine, nearest
from anytpu.chip.assembly.operands import Operands
from anytpu.chip.isa.encoding import fault_of_value
from anytpu.chip.isa.forms import BY_MNEMONIC, Field, FieldKind, Form
from anytpu.chip.isa.instructions import Instruction
from anytpu.chip.isa.registers import Register, RegisterKind
from anytpu.chip.isa.units import Unit

_UNITS = {unit.name.lower(): 1 << unit for unit in Unit} | {"all": (1 << len(Unit)) - 1}


def read_instruction(line: SourceLine, head: Head, column: int, text: str) -> Instruction:
    """Return the instruction of a line, from the result of `SourceLine.split`.

    Raises:
        AssemblyError: the line is not a valid instruction.
    """
    mnemonic, *suffixes = head.text.split(".")
    form = BY_MNEMONIC.get(mnemonic)
    if form is None:
        raise line.error(head.column, f"there is no instruction {mnemonic!r}. {nearest(mnemonic, BY_MNEMONIC)}")
    values = _suffixes(line, head, form, suffixes)
    operands = Operands.read(line, head, column, text, [field.name for field in form.operands])
    operands.require(mnemonic, [field.name for field in form.operands if field.name not in form.defaults])
    for field in form.operands:
        if field.name in operands:
            values[field.name] = _operand(field, operands, values.get("register", 0))
    return form.record(**values)


def _suffixes(line: SourceLine, head: Head, form: Form, suffixes: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    meanings: dict[str, tuple[Field, object]] = {}
    for field in form.suffixes:
        meanings |= (
            {choice: (field, choice) for choice in field.choices} if field.choices else {field.name: (field, True)}
        )
    column = head.column + len(form.mnemonic) + 1
    for suffix in suffixes:
        if suffix not in meanings:
            more = nearest(suffix, meanings) if meanings else "It has none."
            raise line.error(column, f"{form.mnemonic} has no suffix '.{suffix}'. {more}")
        field, value = meanings[suffix]
        if field.name in values:
            twice = "is given twice" if values[field.name] == value else f"does not go with '.{values[field.name]}'"
            raise line.error(column, f"the suffix '.{suffix}' {twice}.")
        values[field.name] = value
        column += len(suffix) + 1
    for field in form.suffixes:
        if field.kind is FieldKind.CHOICE and field.name not in values and field.name not in form.defaults:
            choices = ", ".join(f".{choice}" for choice in field.choices)
            raise line.error(head.column, f"{form.mnemonic} needs one of {choices}.")
    return values


def _operand(field: Field, operands: Operands, register: int) -> Any:
    if field.kind is FieldKind.REGISTER:
        return _register(field, operands)
    if field.kind is FieldKind.UNITS:
        value: Any = _units(field, operands)
    elif field.kind is FieldKind.VALUE and Register(register).kind is RegisterKind.FLOAT:
        value = _nearest_float32(operands.number(field.name))
    else:
        value = operands.whole(field.name)
    fault = fault_of_value(field, value, register)
    if fault is not None:
        operands.refuse(field.name, fault)
    return value


def _register(field: Field, operands: Operands) -> Register:
    value = operands.value(field.name)
    if isinstance(value.content, int) and value.content in set(Register):
        return Register(value.content)
    name = value.text.upper()
    if name not in Register.__members__:
        operands.refuse(field.name, f"there is no register {value.text}. {nearest(name, Register.__members__)}")
    return Register[name]


def _units(field: Field, operands: Operands) -> int:
    content, mask = operands.value(field.name).content, 0
    if isinstance(content, int):
        return content
    if not isinstance(content, tuple):
        operands.refuse(field.name, f"{field.name} must name units, like read|activate.")
    for word in content:
        if word not in _UNITS:
            operands.refuse(field.name, f"there is no unit {word!r}. {nearest(word, _UNITS)}")
        mask |= _UNITS[word]
    return mask


def _nearest_float32(value: int | float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except (OverflowError, struct.error):
        return value  # too large for a float32; the check of the field rejects it
