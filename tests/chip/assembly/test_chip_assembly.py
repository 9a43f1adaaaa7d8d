"""Text to image to text: the same bytes again, and the same text."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.assembly import assemble, disassemble
from anytpu.chip.assembly.instruction_text import write_instruction
from anytpu.chip.graph.nodes import Quantization
from anytpu.chip.image.image import Binding, Image
from anytpu.chip.isa.instructions import (
    Activate,
    Halt,
    Instruction,
    MatrixMultiply,
    ReadHostMemory,
    ReadWeights,
    SetConfiguration,
    Sync,
)
from anytpu.chip.isa.registers import Register
from chip_samples import SMALL, dense_code, dense_image, dense_weights, saved, service_image
from isa_samples import any_instruction, float32_numbers


@settings(max_examples=250, deadline=None)
@given(any_instruction())
def test_an_instruction_there_and_back(instruction: Instruction):
    assert assemble(write_instruction(instruction)).instructions == (instruction,)


@settings(max_examples=250, deadline=None)
@given(float32_numbers())
def test_floats_keep_every_bit(value: float):
    text = write_instruction(SetConfiguration(Register.SCALE, value))
    assert assemble(text).instructions == (SetConfiguration(Register.SCALE, value),)


@pytest.mark.parametrize("image", [dense_image(), service_image()], ids=["plain", "with a step"])
def test_an_image_there_and_back(image: Image):
    text = disassemble(image, weights=True)
    again = assemble(text)
    assert saved(again) == saved(image)
    assert disassemble(again, weights=True) == text


def test_names_that_are_hard_to_write():
    image = dense_image()
    name = 'a "b"; # c\\d\n\u2028é\t.halt'
    tags = tuple(dataclasses.replace(tag, name=name + tag.name, note=name) for tag in image.tags)
    bindings = (dataclasses.replace(image.inputs[0], tensor=name),)
    hard = dataclasses.replace(image, name=name, tags=tags, inputs=bindings)
    text = disassemble(hard, weights=True)
    assert saved(assemble(text)) == saved(hard)
    assert disassemble(assemble(text), weights=True) == text


def test_numbers_of_numpy_are_numbers():
    image = dense_image()
    binding = dataclasses.replace(image.inputs[0], shape=tuple(np.int64([1, 1, 8])), lanes=(np.int32(8),))
    tag = dataclasses.replace(image.tags[0], macs=np.int64(256))
    code = (ReadHostMemory(np.int64(0), np.uint8(0), 4), SetConfiguration(Register.LOW, np.int16(-128)), Halt())  # pyright: ignore
    odd = dataclasses.replace(image, inputs=(binding,), tags=(tag, image.tags[1]), instructions=code)
    again = assemble(disassemble(odd, weights=True))
    assert (again.inputs, again.tags) == (image.inputs, image.tags)
    assert again.instructions == (ReadHostMemory(0, 0, 4), SetConfiguration(Register.LOW, -128), Halt())
    assert saved(odd) == saved(again)


def test_comments_do_not_matter():
    image = dense_image()
    text = disassemble(image, weights=True)
    bare = "\n".join(row.split(";")[0].rstrip() for row in text.splitlines() if row.split(";")[0].strip())
    assert saved(assemble(bare)) == saved(image)


HAND = """\
# Twice the number, plus the number of the lane, for 4 examples.
.name "dense"
.batch 4
.host_bytes 0x100
.design array=8, unified_buffer_bytes=4096, accumulator_rows=16
.input "x", [1, 1, 8], 0, 0.25, zero_point=3        ; the lanes follow from the array
.output "y", shape=[1, 1, 8], host_address=128, scale=0.25, zero_point=3, bits=8, lanes=[8]
.tag "dense/matmul", layer="dense", kind="dense", macs=256, note="1 tile"
.tag "out"
.resident "x", 0, 4, 1, 9
.resident "y", 4, 4, 11, 14
.int32 0, 1, 2, 3, 4, 5, 6, 7
.float32 0.5, .5, 5e-1, 0.5, 0.5, 0.5, 0.5, +0.5
.block 1
.int8 2, 0, 0, 0, 0, 0, 0, 0
.int8 0, 2, 0, 0, 0, 0, 0, 0
.int8 0, 0, 2, 0, 0, 0, 0, 0
.int8 0, 0, 0, 2, 0, 0, 0, 0
.int8 0, 0, 0, 0, 2, 0, 0, 0
.int8 0, 0, 0, 0, 0, 2, 0, 0
.int8 0, 0, 0, 0, 0, 0, 2, 0
.int8 0, 0, 0, 0, 0, 0, 0, 2
.block 2

debug_tag 0
  read_host_memory 0, 0, 4
read_weights.parameters address=0, count=1
read_weights 1, 1
set_configuration pitch, 1
set_configuration register=OUT_PITCH, value=0x1
set_configuration LOW, -128
set_configuration 41, 127
sync matrix, read
matrix_multiply 0, accumulator=0, rows=4
sync 8, finished=4
activate.scale 0, 4, 4
debug_tag 1
sync write, activate
write_host_memory host_address=128, units=4, address=4
halt
"""


def test_a_text_by_hand():
    assert saved(assemble(HAND)) == saved(dense_image())


def test_every_way_to_write_an_instruction():
    def one(text: str) -> Instruction:
        (found,) = assemble(text).instructions
        return found

    product = MatrixMultiply(64, 2, 200, repeat=3, accumulate=True, keep=True)
    assert one("matrix_multiply.accumulate.keep 64, 2, 200, 3") == product
    assert one("matrix_multiply.keep.accumulate 0x40, 2, repeat=3, rows=200;x") == product
    assert one("\tmatrix_multiply.keep.accumulate repeat = 3 ,rows=200,accumulator=2,address=64 # x") == product
    assert one("read_weights.table.wide 1, 2, 3") == ReadWeights(1, 2, "table", 3, wide=True)
    assert one("read_weights.wide.table 1, 2, 3") == ReadWeights(1, 2, "table", 3, wide=True)
    assert one("read_weights 1, 2") == one("read_weights.tile 1, 2") == ReadWeights(1, 2)
    assert one("activate.max.wide_out.wide 1, 2, 3") == Activate("max", 1, 2, 3, wide=True, wide_out=True)
    assert one("sync all, read|write|read") == Sync(31, 17)
    assert one("read_host_memory 1, 2, 3") == ReadHostMemory(1, 2, 3)
    assert one("set_configuration SCALE, 0.1") == SetConfiguration(Register.SCALE, float(np.float32(0.1)))
    assert one("set_configuration scale, 1") == SetConfiguration(Register.SCALE, 1.0)
    assert one("halt") == one("halt;") == Halt()


def test_a_small_text_needs_little():
    image = assemble("halt", "tiny")
    assert (image.name, image.batch, image.instructions, len(image.weights)) == ("tiny", 1, (Halt(),), 0)
    assert assemble('.name "own"\nhalt', "tiny").name == "own"
    assert assemble("").instructions == ()


def test_lanes_follow_from_the_array():
    def lanes(channels: int, design: str = "") -> tuple[int, ...]:
        return assemble(f'.input "x", [1, 1, {channels}], 0, 1\n{design}').inputs[0].lanes

    assert lanes(3) == (3,)
    assert lanes(600) == (256, 256, 88)
    assert lanes(24, ".design array=8") == (8, 8, 8)


def test_the_weight_memory_in_numbers():
    image = assemble('.uint8 255, 0\n.int8 -1\n.int16 -2\n.float32 1\n.zero 3\n.base64 "AQI="\n.base64 ""')
    assert bytes(image.weights).hex() == "ff00" + "ff" + "feff" + "0000803f" + "000000" + "0102"
    assert assemble(".block 2").weights.size == 4096


def test_what_a_reading_text_leaves_out():
    text = disassemble(dense_image())
    assert '.left_out "4,096 bytes of weights"' in text.splitlines()
    assert ".base64" not in text
    text = disassemble(service_image())
    assert '.left_out "4,096 bytes of weights and what the host does"' in text.splitlines()
    bare = dataclasses.replace(dense_image(), weights=np.zeros(0, np.uint8))
    assert saved(assemble(disassemble(bare))) == saved(bare)


LISTING = """\
; with a step: 17 instructions, 114 bytes, for batches of 4
.name "with a step"
.batch 4
.host_bytes 256
.design array=8, unified_buffer_bytes=4096, accumulator_rows=16
.input "x", shape=[1, 1, 8], host_address=0, scale=0.25, zero_point=3, bits=8, lanes=[8]
.output "y", shape=[1, 1, 8], host_address=128, scale=0.25, zero_point=3, bits=8, lanes=[8]
.tag "dense/matmul", layer="dense", kind="dense", macs=256, note="1 tile"
.tag "out"
.resident "x", address=0, units=4, first=1, last=9
.resident "y", address=4, units=4, first=11, last=14
.left_out "4,096 bytes of weights and what the host does"

; dense/matmul (dense) 1 tile
debug_tag 0                                                       ; 0
read_host_memory host_address=0, address=0, units=4               ; 4 host bytes 0 to 127 -> units 0 to 3
read_weights.parameters address=0, count=1                        ; 16 block 0 -> parameter FIFO
read_weights.tile address=1, count=1                              ; 25 block 1 -> weight FIFO
set_configuration PITCH, 1                                        ; 34 units from a source row to the next
set_configuration OUT_PITCH, 1                                    ; 40 units from a row of the result to the next
set_configuration LOW, -128                                       ; 46 lower clip bound of the result
set_configuration HIGH, 127                                       ; 52 upper clip bound of the result
sync matrix, read                                                 ; 58 matrix waits for read
matrix_multiply address=0, accumulator=0, rows=4                  ; 61 units 0 to 3, 1 tile -> accumulators 0 to 3
sync activate, matrix                                             ; 73 activate waits for matrix
activate.scale source=0, target=4, rows=4                         ; 76 accumulators 0 to 3, parameters -> units 4 to 7

; out
debug_tag 1                                                       ; 91
sync write, activate                                              ; 95 write waits for activate
write_host_memory host_address=128, address=4, units=4            ; 98 units 4 to 7 -> host bytes 128 to 255
interrupt_host 0                                                  ; 110 negate on the host: the test says so
halt                                                              ; 113
"""


def test_a_listing():
    assert disassemble(service_image()) == LISTING


def test_the_listing_of_a_program_that_is_wrong():
    text = "activate.max 0, 0, 1\nmatrix_multiply 0, 0, 5, repeat=4\nset_configuration PLANE_STRIDE, 9"
    rows = disassemble(assemble(text + "\nmatrix_multiply 0, 0, 5, repeat=4\ndebug_tag 7")).splitlines()
    assert [row.split("; ")[1] for row in rows[5:]] == [
        "0 a register of its geometry is 0",
        "15 a register of its geometry is 0",
        "27 units from the plane of a MatrixMultiply pass to the next",
        "33 a register of its geometry is 0",
        "45",
    ]


def test_sixteen_bits_and_several_planes():
    binding = Binding("x", (2, 3, 12), Quantization(1e-5, -300, 16), 64, (8, 4))
    image = dataclasses.replace(dense_image(), inputs=(binding,), instructions=dense_code(), weights=dense_weights())
    again = assemble(disassemble(image, weights=True))
    assert again.inputs == (binding,) and again.design == SMALL


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300))
def test_any_weights_there_and_back(content: bytes):
    image = dataclasses.replace(dense_image(), weights=np.frombuffer(content, np.uint8))
    assert bytes(assemble(disassemble(image, weights=True)).weights) == content
