"""Bytes of instructions: there and back, and what is refused."""

from __future__ import annotations

import dataclasses
import typing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.isa import decode, encode
from anytpu.chip.isa.encoding import fault_of
from anytpu.chip.isa.forms import FORMS, FieldKind, Form
from anytpu.chip.isa.instructions import (
    Activate,
    Convolve,
    DebugTag,
    Halt,
    Instruction,
    MatrixMultiply,
    ReadWeights,
    SetConfiguration,
    Sync,
)
from anytpu.chip.isa.registers import Register
from anytpu.errors import ChipError, ChipFileError
from isa_samples import any_instruction
from refusals import refusal


@settings(max_examples=200, deadline=None)
@given(st.lists(any_instruction(), max_size=6))
def test_there_and_back(instructions: list[Instruction]):
    content = encode(instructions)
    assert decode(content) == tuple(instructions)
    assert encode(decode(content)) == content


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(FORMS), st.binary(min_size=14, max_size=14))
def test_what_is_read_is_written_back_or_refused(form: Form, body: bytes):
    content = bytes([form.opcode]) + body[: form.length_bytes - 1]
    try:
        read = decode(content)
    except ChipFileError as error:
        assert str(error).startswith(f"The {form.mnemonic} at byte 0 of the instructions: ")
    else:
        assert encode(read) == content


def test_a_product_takes_twelve_bytes_as_published():
    product = MatrixMultiply(address=0x030201, accumulator=0x0504, rows=0x09080706, repeat=10, accumulate=True)
    assert encode([product]).hex() == "13" + "01" + "0a" + "010203" + "0405" + "06070809"
    convolution = Convolve(address=1, accumulator=2, rows=3, keep=True, unsigned=True, wide=True)
    assert encode([convolution]).hex() == "14" + "0e" + "01" + "010000" + "0200" + "03000000"


def test_values_of_registers():
    assert encode([SetConfiguration(Register.PAD_TOP, -1)]).hex() == "050f" + "ffffffff"
    assert encode([SetConfiguration(Register.SCALE, 0.5)]).hex() == "052a" + "0000003f"
    assert decode(bytes.fromhex("050fffffffff")) == (SetConfiguration(Register.PAD_TOP, -1),)
    assert encode([SetConfiguration(Register.PITCH, np.int64(8))]) == encode([SetConfiguration(Register.PITCH, 8)])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.mnemonic)
def test_a_form_has_the_fields_of_its_record(form: Form):
    hints = typing.get_type_hints(form.record)
    names = [field.name for field in form.fields if field.kind is not FieldKind.RESERVED]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(form.record))
    assert sum(field.bits for field in form.fields) % 8 == 0
    for field in form.fields:
        if field.kind is FieldKind.CHOICE:
            assert field.choices == typing.get_args(hints[field.name])
        if field.kind is FieldKind.FLAG:
            assert hints[field.name] is bool


def test_every_instruction_has_a_form():
    def leaves(record: type) -> list[type]:
        children = record.__subclasses__()
        return [leaf for child in children for leaf in leaves(child)] if children else [record]

    assert set(leaves(Instruction)) == {form.record for form in FORMS}
    assert len({form.opcode for form in FORMS}) == len({form.mnemonic for form in FORMS}) == len(FORMS)


UNFIT = [
    (MatrixMultiply(0, 0, 1, repeat=256), "matrix_multiply: repeat must be a number from 1 to 255, not 256."),
    (MatrixMultiply(0, 0, rows=0), "matrix_multiply: rows must be a number from 1 to 4294967295, not 0."),
    (Convolve(-1, 0, 1), "convolve: address must be a number from 0 to 16777215, not -1."),
    (MatrixMultiply(0, 0, rows=1.5), "matrix_multiply: rows must be an integer, not 1.5."),  # pyright: ignore[reportArgumentType]
    (Sync(32, 1), "sync: waiting must be a number from 1 to 31, not 32."),
    (SetConfiguration(20, 1), "set_configuration: there is no register 20."),
    (SetConfiguration(0, 65), "set_configuration: register PITCH must be a number from 0 to 64, not 65."),
    (
        SetConfiguration(Register.SCALE, 0.1),
        "set_configuration: register SCALE must be a float32 number above 0, and 0.1 is none: the nearest is "
        "0.10000000149011612.",
    ),
    (
        SetConfiguration(Register.SCALE, 1e39),
        "set_configuration: register SCALE must be a float32 number above 0, and 1e+39 is greater than all of them.",
    ),
    (
        SetConfiguration(Register.OUT_SCALE, 2.0**101),
        "set_configuration: register OUT_SCALE must be a float32 number above 0 and at most 2**100, not "
        "2.535301200456459e+30.",
    ),
    (
        SetConfiguration(Register.SCALE, float("nan")),
        "set_configuration: register SCALE must be a float32 number above 0, not nan.",
    ),
    (ReadWeights(0, 1, "tiles"), "read_weights: kind must be 'tile', 'parameters' or 'table', not 'tiles'."),  # pyright: ignore[reportArgumentType]
    (
        Activate("relu", 0, 0, 1),  # pyright: ignore[reportArgumentType]
        "activate: operation must be 'scale', 'copy', 'add', 'subtract', 'multiply', 'max' or 'average', not 'relu'.",
    ),
]


@pytest.mark.parametrize(("instruction", "text"), UNFIT, ids=[text.split(" must")[0] for _, text in UNFIT])
def test_what_does_not_fit_is_refused(instruction: Instruction, text: str):
    assert refusal(ChipError, encode, [Halt(), instruction]) == f"Instruction 1, {text}"
    assert fault_of(instruction) == text.split(": ", 1)[1]
    assert fault_of(Halt()) is None


FOREIGN = [
    ("02" + "00", "Byte 1 of the instructions is 0x00, which is no opcode."),
    ("02" + "ee", "Byte 1 of the instructions is 0xee, which is no opcode."),
    (
        "01" + "130001",
        "The instructions end within the matrix_multiply at byte 1: it takes 12 bytes, and 3 are left.",
    ),
    (
        "13" + "10" + "01" + "000000" + "0000" + "01000000",
        "The matrix_multiply at byte 0 of the instructions: a reserved bit of its flags is 1, and all must be 0.",
    ),
    (
        "13" + "00" + "00" + "000000" + "0000" + "01000000",
        "The matrix_multiply at byte 0 of the instructions: repeat must be a number from 1 to 255, not 0.",
    ),
    (
        "12" + "03" + "000000" + "010000" + "00",
        "The read_weights at byte 0 of the instructions: kind must be 'tile', 'parameters' or 'table', and 3 is none "
        "of them.",
    ),
    ("0514" + "00000000", "The set_configuration at byte 0 of the instructions: there is no register 20."),
    (
        "0500" + "ffffffff",
        "The set_configuration at byte 0 of the instructions: register PITCH must be a number from 0 to 64, not "
        "4294967295.",
    ),
    (
        "052b" + "01008071",
        "The set_configuration at byte 0 of the instructions: register SECOND_SCALE must be a float32 number above 0 "
        "and at most 2**100, not 1.2676507513439569e+30.",
    ),
    (
        "052a" + "0000c07f",
        "The set_configuration at byte 0 of the instructions: register SCALE must be a float32 number above 0, not "
        "nan.",
    ),
    ("062001", "The sync at byte 0 of the instructions: waiting must be a number from 1 to 31, not 32."),
]


@pytest.mark.parametrize(("content", "text"), FOREIGN)
def test_bytes_that_are_no_instructions(content: str, text: str):
    assert refusal(ChipFileError, decode, bytes.fromhex(content)) == text


def test_every_end_within_an_instruction_is_found():
    content = encode([DebugTag(1), Activate("max", 1, 2, 3), Halt()])
    for stop in range(1, len(content)):
        if stop in (4, 19):
            continue
        with pytest.raises(ChipFileError):
            decode(content[:stop])
