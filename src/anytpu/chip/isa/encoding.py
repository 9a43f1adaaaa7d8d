"""`encode` and `decode`: instructions to bytes and back, by the table in `forms.py`.

Rule: `decode(encode(x)) == x` and `encode(decode(b)) == b`, or an error that names the instruction or the byte.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterable
from typing import Any

from anytpu.chip.isa.forms import BY_OPCODE, Field, FieldKind, Form, form_of
from anytpu.chip.isa.instructions import Instruction
from anytpu.chip.isa.registers import Register, RegisterKind, power_text
from anytpu.errors import ChipError, ChipFileError

_FLOAT = struct.Struct("<f")


class _FieldError(Exception):
    """A number does not fit its field; the text names the field, the accepted values and the value."""


def encode(instructions: Iterable[Instruction]) -> bytes:
    """Return the bytes of instructions.

    Raises:
        ChipError: a number does not fit its field; the instruction is named.

    Example:
        >>> from anytpu.chip.isa.instructions import Halt, MatrixMultiply
        >>> encode([MatrixMultiply(address=0x40, accumulator=2, rows=200, keep=True), Halt()]).hex(" ")
        '13 02 01 40 00 00 02 00 c8 00 00 00 02'
    """
    parts = []
    for index, instruction in enumerate(instructions):
        try:
            parts.append(_bytes_of(instruction))
        except _FieldError as error:
            raise ChipError(f"Instruction {index}, {form_of(instruction).mnemonic}: {error}") from None
    return b"".join(parts)


def fault_of(instruction: Instruction) -> str | None:
    """Return the error text of an instruction's first field that cannot hold its value, or None if all can."""
    try:
        _bytes_of(instruction)
    except _FieldError as error:
        return str(error)
    return None


def fault_of_value(field: Field, value: object, register: int = 0) -> str | None:
    """Return why a field cannot hold a value, or None when it can.

    Args:
        field: the field.
        value: the value to hold.
        register: number of the register that a `VALUE` field is for.
    """
    try:
        _bits(field, value, register)
    except _FieldError as error:
        return str(error)
    return None


def decode(content: bytes) -> tuple[Instruction, ...]:
    """Decode instructions from bytes.

    Raises:
        ChipFileError: an unknown opcode, a reserved bit that is set, a number that its field may not hold, or an end
            within an instruction. The message names the byte.

    Example:
        >>> decode(bytes.fromhex("06 04 09 02"))
        (Sync(waiting=4, finished=9), Halt())
    """
    # Equal instructions are one object: a small file may hold the same one sixteen million times.
    instructions, offset, known = [], 0, dict[bytes, Instruction]()
    while offset < len(content):
        form = BY_OPCODE.get(content[offset])
        if form is None:
            raise ChipFileError(f"Byte {offset} of the instructions is 0x{content[offset]:02x}, which is no opcode.")
        stop = offset + form.length_bytes
        if stop > len(content):
            raise ChipFileError(
                f"The instructions end within the {form.mnemonic} at byte {offset}: it takes "
                f"{form.length_bytes} bytes, and {len(content) - offset} are left."
            )
        written = content[offset:stop]
        if written not in known:
            try:
                known[written] = _instruction(form, int.from_bytes(written, "little"))
            except _FieldError as error:
                raise ChipFileError(f"The {form.mnemonic} at byte {offset} of the instructions: {error}") from None
        instructions.append(known[written])
        offset = stop
    return tuple(instructions)


def _value_bits(register: int, value: int | float) -> int:
    known = _known_register(register)
    if known.kind is RegisterKind.FLOAT:
        return _float_bits(known.name, value, known.maximum)
    return _whole(f"register {known.name}", value, known.minimum, known.maximum) & 0xFFFFFFFF


def _float_bits(name: str, value: int | float, maximum: int) -> int:
    expected = f"register {name} must be a float32 number above 0"
    if not (isinstance(value, int | float) and 0 < value < math.inf):
        raise _FieldError(f"{expected}, not {value!r}.")
    try:
        packed = _FLOAT.pack(value)
    except (OverflowError, struct.error):
        raise _FieldError(f"{expected}, and {value!r} is greater than all of them.") from None
    if _FLOAT.unpack(packed)[0] != value:
        raise _FieldError(f"{expected}, and {value!r} is none: the nearest is {_FLOAT.unpack(packed)[0]!r}.")
    if value > maximum:
        raise _FieldError(f"{expected} and at most {power_text(maximum)}, not {value!r}.")
    return int.from_bytes(packed, "little")


def _bytes_of(instruction: Instruction) -> bytes:
    form = form_of(instruction)
    word = form.opcode
    for field, bit in form.places:
        if field.kind is not FieldKind.RESERVED:
            value = getattr(instruction, field.name)
            word |= _bits(field, value, getattr(instruction, "register", 0)) << bit
    return word.to_bytes(form.length_bytes, "little")


def _bits(field: Field, value: Any, register: int) -> int:
    kind = field.kind
    if kind is FieldKind.FLAG:
        return bool(value)
    if kind is FieldKind.CHOICE:
        if value not in field.choices:
            raise _FieldError(f"{field.name} must be {_either(field.choices)}, not {value!r}.")
        return field.choices.index(value)
    if kind is FieldKind.VALUE:
        return _value_bits(register, value)
    whole = _whole(field.name, value, field.minimum, field.maximum)
    if kind is FieldKind.REGISTER:
        _known_register(whole)
    return whole


def _whole(name: str, value: object, minimum: int, maximum: int) -> int:
    try:
        whole = operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise _FieldError(f"{name} must be an integer, not {value!r}.") from None
    if not minimum <= whole <= maximum:
        raise _FieldError(f"{name} must be a number from {minimum} to {maximum}, not {whole}.")
    return whole


def _known_register(number: int) -> Register:
    try:
        return Register(number)
    except ValueError:
        raise _FieldError(f"there is no register {number}.") from None


def _instruction(form: Form, word: int) -> Instruction:
    values: dict[str, object] = {}
    for field, bit in form.places:
        raw = (word >> bit) & ((1 << field.bits) - 1)
        kind = field.kind
        if kind is FieldKind.VALUE:
            values[field.name] = _value(values["register"], raw)
            continue
        if not field.minimum <= raw <= field.maximum:
            raise _FieldError(_outside(field, raw))
        if kind is FieldKind.NUMBER or kind is FieldKind.UNITS:
            values[field.name] = raw
        elif kind is FieldKind.FLAG:
            values[field.name] = raw == 1
        elif kind is FieldKind.CHOICE:
            values[field.name] = field.choices[raw]
        elif kind is FieldKind.REGISTER:
            values[field.name] = _known_register(raw)
    return form.record(**values)  # pyright: ignore[reportCallIssue]


def _outside(field: Field, raw: int) -> str:
    if field.kind is FieldKind.RESERVED:
        return "a reserved bit of its flags is 1, and all must be 0."
    if field.kind is FieldKind.CHOICE:
        return f"{field.name} must be {_either(field.choices)}, and {raw} is none of them."
    return f"{field.name} must be a number from {field.minimum} to {field.maximum}, not {raw}."


def _value(register: object, raw: int) -> int | float:
    assert isinstance(register, Register)
    if register.kind is RegisterKind.FLOAT:
        value: int | float = _FLOAT.unpack(raw.to_bytes(4, "little"))[0]
    else:
        value = raw - (1 << 32) if register.kind is RegisterKind.SIGNED and raw >> 31 else raw
    _value_bits(register, value)
    return value


def _either(choices: tuple[str, ...]) -> str:
    return f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
