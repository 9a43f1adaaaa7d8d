"""Instructions for the tests of `chip`: any that its table of forms allows."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from anytpu.chip.isa.forms import FORMS, Field, FieldKind, Form
from anytpu.chip.isa.instructions import Instruction
from anytpu.chip.isa.registers import Register, RegisterKind


def float32_numbers() -> st.SearchStrategy[float]:
    return st.floats(min_value=2.0**-149, max_value=2.0**100, width=32)


def values_of(register: Register) -> st.SearchStrategy[int | float]:
    if register.kind is RegisterKind.FLOAT:
        return float32_numbers()
    return st.integers(register.minimum, register.maximum)


def field_values(field: Field) -> st.SearchStrategy[object]:
    if field.kind is FieldKind.FLAG:
        return st.booleans()
    if field.kind is FieldKind.CHOICE:
        return st.sampled_from(field.choices)
    return st.integers(field.minimum, field.maximum) | st.sampled_from([field.minimum, field.maximum])


def instructions_of(form: Form) -> st.SearchStrategy[Instruction]:
    if form.mnemonic == "set_configuration":
        registers = st.sampled_from(list(Register))
        pairs = registers.flatmap(lambda r: st.tuples(st.just(r), values_of(r)))
        return pairs.map(lambda pair: form.record(*pair))  # pyright: ignore[reportCallIssue]
    named = {f.name: field_values(f) for f in form.fields if f.kind is not FieldKind.RESERVED}
    return st.fixed_dictionaries(named).map(lambda values: form.record(**values))  # pyright: ignore[reportCallIssue]


def any_instruction() -> st.SearchStrategy[Instruction]:
    return st.one_of([instructions_of(form) for form in FORMS])


def float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]
