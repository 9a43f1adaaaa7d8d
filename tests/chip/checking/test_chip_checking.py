"""What the checker finds in programs that are written by hand, whole; and that it finds nothing in right ones."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from anytpu.chip.assembly import assemble
from anytpu.chip.checking import check
from anytpu.chip.image.image import Image
from anytpu.chip.isa.instructions import MatrixMultiply, SetConfiguration
from anytpu.chip.isa.registers import Register
from anytpu.errors import ChipError, HazardError
from chip_samples import dense_image, service_image
from refusals import refusal

HEAD = """\
.batch 4
.host_bytes 512
.design array=8, unified_buffer_bytes=4096, accumulator_rows=16
.input "x", [1, 1, 8], 0, 0.5
.output "y", [1, 1, 8], 128, 0.5
.tag "dense"
.tag "sigmoid"
.zero 8192
set_configuration PITCH, 1
set_configuration OUT_PITCH, 1
set_configuration LOW, -128
set_configuration HIGH, 127
"""
"""Four instructions, so what follows begins with number 4."""

RIGHT = """\
debug_tag 0
read_host_memory 0, 0, 4
read_weights.parameters 0, 1
read_weights.tile 1, 1
sync matrix, read
matrix_multiply 0, 0, 4
sync activate, matrix
debug_tag 1
activate.scale 0, 4, 4
sync write, activate
write_host_memory 128, 4, 4
halt
"""


def image_of(text: str, head: str = HEAD) -> Image:
    return assemble(head + text)


def without(row: str) -> str:
    assert RIGHT.count(row + "\n") == 1
    return RIGHT.replace(row + "\n", "")


def changed(row: str, new: str) -> str:
    assert RIGHT.count(row + "\n") == 1
    return RIGHT.replace(row + "\n", new + "\n")


@pytest.mark.parametrize("image", [image_of(RIGHT), dense_image(), service_image()], ids=["text", "code", "service"])
def test_right_programs_pass(image: Image):
    check(image)


WINDOW = """\
set_configuration LANES, 2
set_configuration TAPS, 2
set_configuration BATCH, 1
set_configuration IN_HEIGHT, 2
set_configuration IN_WIDTH, 2
set_configuration OUT_WIDTH, 1
set_configuration KERNEL_HEIGHT, 2
set_configuration KERNEL_WIDTH, 2
set_configuration STRIDE_HEIGHT, 1
set_configuration STRIDE_WIDTH, 1
set_configuration DILATION_HEIGHT, 1
set_configuration DILATION_WIDTH, 1
read_host_memory 0, 0, 4
read_weights 0, 2
sync matrix|activate, read
"""


def cases(table: str) -> dict[str, tuple[str, str]]:
    """Return each program and its fault, by name: a program is RIGHT with changes (`row -> rows`), or whole (`=`)."""
    found = {}
    for entry in re.split(r"\n(?=\S)", table.strip()):
        name, *rows = re.sub(r"\n {8}", " ", entry).splitlines()
        text, fault = RIGHT, rows.pop().removeprefix("    : ")
        for row in rows:
            old, arrow, new = row.strip().partition(" ->")
            if arrow:
                assert text.count(old) == 1, (name, row)
                text = text.replace(old, new.strip())
            else:
                text = row.strip("= ").replace("<RIGHT>", RIGHT).replace("<WINDOW>", WINDOW)
        number = re.match(r"Instruction (\d+)", fault)
        if number:
            wait = f", and nothing lets it wait until that is done. Insert before instruction {number[1]}:\n    "
            fault = fault.replace(" <- ", wait)
        found[name] = (re.sub("; |\n+", "\n", text) + "\n", fault)
    return found


HAZARDS = cases("""
read after write, over the buffer
    sync matrix, read ->
    : Instruction 8 (matrix_multiply of 'dense') reads units 0 to 3 of the Unified Buffer, which instruction 5
        (read_host_memory of 'dense') writes <- sync matrix, read
read after write, over the accumulators
    sync activate, matrix ->
    : Instruction 11 (activate of 'sigmoid') reads rows 0 to 3 of the accumulators, which instruction 9
        (matrix_multiply of 'dense') writes <- sync activate, matrix
write after read
    halt -> read_host_memory 0, 3, 3; halt
    : Instruction 15 (read_host_memory of 'sigmoid') writes unit 3 of the Unified Buffer, which instruction 9
        (matrix_multiply of 'dense') reads <- sync read, matrix|activate|write
write after write
    sync write, activate -> sync write, activate; read_host_memory 0, 7, 2
    : Instruction 14 (read_host_memory of 'sigmoid') writes unit 7 of the Unified Buffer, which instruction 12
        (activate of 'sigmoid') writes too <- sync read, activate
write after read, over the accumulators
    halt -> read_weights 1, 1; matrix_multiply.accumulate 0, 2, 2; halt
    : Instruction 16 (matrix_multiply of 'sigmoid') writes rows 2 to 3 of the accumulators, which instruction 12
        (activate of 'sigmoid') reads <- sync matrix, activate
a Sync that is too early
    sync matrix, read ->
    debug_tag 0 -> debug_tag 0; sync matrix, read
    : Instruction 9 (matrix_multiply of 'dense') reads units 0 to 3 of the Unified Buffer, which instruction 6
        (read_host_memory of 'dense') writes <- sync matrix, read
a Sync the wrong way round
    sync write, activate -> sync activate, write
    : Instruction 14 (write_host_memory of 'sigmoid') reads units 4 to 7 of the Unified Buffer, which instruction 12
        (activate of 'sigmoid') writes <- sync write, activate
over the host's buffer
    halt -> read_host_memory 224, 100, 1; halt
    : Instruction 15 (read_host_memory of 'sigmoid') reads bytes 224 to 255 of the host's buffer, which instruction 14
        (write_host_memory of 'sigmoid') writes <- sync read, write
over a table
    activate.scale 0, 4, 4 -> read_weights.table 3, 1, 0; activate.scale.table 0, 4, 4
    : Instruction 13 (activate of 'sigmoid') reads table 0, which instruction 12 (read_weights of 'sigmoid') writes <-
        sync activate, weights
accumulators that nothing has written
    matrix_multiply 0, 0, 4 -> matrix_multiply 0, 0, 3
    : Instruction 12 (activate of 'sigmoid') reads row 3 of the accumulators, which nothing has written. The first
        product of a sum is one without .accumulate.
sums that are added to nothing
    matrix_multiply 0, 0, 4 -> matrix_multiply.accumulate 0, 0, 4
    : Instruction 9 (matrix_multiply of 'dense') reads rows 0 to 3 of the accumulators, which nothing has written. The
        first product of a sum is one without .accumulate.
a buffer that nothing has written
    write_host_memory 128, 4, 4 -> write_host_memory 128, 6, 4
    : Instruction 14 (write_host_memory of 'sigmoid') reads units 8 to 9 of the Unified Buffer, which nothing has
        written. Fill them first, with read_host_memory or activate.
a host's buffer that nothing has written
    read_host_memory 0, 0, 4 -> read_host_memory 0, 0, 5
    : Instruction 5 (read_host_memory of 'dense') reads bytes 128 to 159 of the host's buffer, which nothing has
        written. Only the program's inputs are there from the start: write_host_memory, or a step of the host, comes
        first.
a table that nothing has written
    activate.scale 0, 4, 4 -> activate.scale.table 0, 4, 4
    : Instruction 12 (activate of 'sigmoid') reads table 0, which nothing has written. Fill it first:
        read_weights.table.
a table of other numbers
    activate.scale 0, 4, 4 -> read_weights.table.wide 0, 1, 0; sync activate, weights; activate.scale.table 0, 4, 4
    debug_tag 0 -> .zero 131072; debug_tag 0
    : Instruction 14 (activate of 'sigmoid') looks 8 bits up in table 0, which was read as one of 16 bits.
a tile that was not read
    read_weights.tile 1, 1 ->
    : Instruction 8 (matrix_multiply of 'dense') takes 1 from the FIFO (read_weights.tile), where what was issued
        before leaves 0. Read more before it.
parameters that were not read
    read_weights.parameters 0, 1 ->
    : Instruction 11 (activate of 'sigmoid') takes 1 from the FIFO (read_weights.parameters), where what was issued
        before leaves 0. Read more before it.
a tile that was never in the array
    matrix_multiply 0, 0, 4 -> matrix_multiply.keep 0, 0, 4
    : Instruction 9 (matrix_multiply of 'dense') keeps the last tile, and none was taken before. Leave out .keep.
parameters that were never there
    activate.scale 0, 4, 4 -> activate.scale.keep 0, 4, 4
    : Instruction 12 (activate of 'sigmoid') keeps the last parameters, and none was taken before. Leave out .keep.
tiles that are left
    read_weights.tile 1, 1 -> read_weights.tile 1, 2
    : The program ends with something in the weight FIFO, which its next run would take for its own: read_weights.tile
        sends for 2, and the products pop 1.
parameters that are left
    read_weights.parameters 0, 1 -> read_weights.parameters 0, 3
    : The program ends with something in the parameter FIFO, which its next run would take for its own:
        read_weights.parameters sends for 3, and activate.scale pops 1.
an output that nothing has written
    write_host_memory 128, 4, 4 -> write_host_memory 128, 4, 3
    : Output 'y' is taken from bytes 128 to 255 of the host's buffer, and nothing has written byte 224. Write it with
        write_host_memory.
lanes between parts of rows that nothing has written
    debug_tag 1 -> debug_tag 1; set_configuration OUT_PITCH, 2; set_configuration OUT_UNITS, 1
    : Instruction 16 (write_host_memory of 'sigmoid') reads unit 5 of the Unified Buffer, which nothing has written.
        Fill them first, with read_host_memory or activate.
a result that is written over its source
    halt -> sync activate, write; activate.copy 4, 5, 3; halt
    : Instruction 16 (activate of 'sigmoid') writes units 5 to 6 of the Unified Buffer before it has read them all.
high bytes over low ones
    debug_tag 1 -> debug_tag 1; set_configuration OUT_HIGH_OFFSET, 3
    activate.scale -> activate.scale.wide_out
    : Instruction 13 (activate of 'sigmoid') writes unit 7 of the Unified Buffer twice, with low bytes and with high
        ones: OUT_HIGH_OFFSET must be 4 or more, not 3.
""")


@pytest.mark.parametrize("name", HAZARDS)
def test_what_depends_on_luck(name: str):
    text, expected = HAZARDS[name]
    assert refusal(HazardError, check, image_of(text)) == expected


def test_the_sync_that_is_named_is_the_remedy():
    for text, expected in HAZARDS.values():
        if "Insert before instruction" in expected:
            image = image_of(text)
            number = int(expected.split("Insert before instruction ")[1].split(":")[0])
            sync = assemble(expected.splitlines()[-1]).instructions
            code = image.instructions[:number] + sync + image.instructions[number:]
            try:
                check(dataclasses.replace(image, instructions=code))
            except HazardError as error:  # that of a later instruction
                assert int(str(error).split()[1]) > number + 1


WRONG = cases("""
sums beyond the array
    debug_tag 1 -> debug_tag 1; set_configuration SOURCE_LANE, 8
    : Instruction 13 (activate of 'sigmoid') reads sums from SOURCE_LANE = 8 on, and the array has 8 lanes, from 0 on.
parts of rows that are larger than the rows
    debug_tag 1 -> debug_tag 1; set_configuration OUT_UNITS, 2
    : Instruction 13 (activate of 'sigmoid') writes OUT_UNITS = 2 units of rows that have 1 (OUT_PITCH = 1).
parts of too many rows
    activate.scale 0, 4, 4 -> set_configuration OUT_PITCH, 2; set_configuration OUT_UNITS, 1; activate.scale 0, 4,
        4294967295
    : Instruction 14 (activate of 'sigmoid') writes a part of 4294967295 rows, which may be at most 4096: OUT_UNITS is
        not 0.
no halt
    halt ->
    : The program 'assembled' does not end: its last instruction must be a halt.
no instruction
    =
    : The program 'assembled' does not end: its last instruction must be a halt.
more after the halt
    = <RIGHT>; nop; halt
    : Instruction 15 is a halt, and 2 more follow. A halt is the last.
a step that the host does not know
    halt -> interrupt_host 0; halt
    : Instruction 15 (interrupt_host of 'sigmoid') asks for the host's step 0, and the image has 0.
a part without a name
    debug_tag 1 -> debug_tag 2
    : Instruction 11 marks part 2, and the image names 2.
an address past the Unified Buffer
    activate.scale 0, 4, 4 -> activate.scale 0, 125, 4
    : Instruction 12 (activate of 'sigmoid') writes units 125 to 128 of the Unified Buffer, of which there are 128.
an address past the accumulators
    matrix_multiply 0, 0, 4 -> matrix_multiply 0, 13, 4
    : Instruction 9 (matrix_multiply of 'dense') writes rows 13 to 16 of the accumulators, of which there are 16.
an address past the Weight Memory
    read_weights.tile 1, 1 -> read_weights.tile 1, 4
    : Instruction 7 (read_weights of 'dense') reads blocks 1 to 4 of the Weight Memory, of which there are 4.
a table past the last
    halt -> read_weights.table 0, 2, 255; halt
    : Instruction 15 (read_weights of 'sigmoid') writes tables 255 to 256, of which there are 256.
an address past the host's buffer
    write_host_memory 128, 4, 4 -> write_host_memory 500, 4, 4
    : Instruction 14 (write_host_memory of 'sigmoid') writes bytes 500 to 627 of the host's buffer, of which there are
        512.
an input past the host's buffer
    = .host_bytes 100; <RIGHT>
    : Input 'x' is at bytes 0 to 127 of the host's buffer, which has 100.
a register that is 0
    = matrix_multiply 0, 0, 4, repeat=2; halt
    : Instruction 4 (matrix_multiply) uses the register PLANE_STRIDE, which is 0. Set it before: set_configuration
        PLANE_STRIDE, ...
a window without a stride
    = <WINDOW>; set_configuration STRIDE_WIDTH, 0; convolve 0, 0, 1; halt
    : Instruction 20 (convolve) uses the register STRIDE_WIDTH, which is 0. Set it before: set_configuration
        STRIDE_WIDTH, ...
a pool without a dilation
    = <WINDOW>; set_configuration DILATION_HEIGHT, 0; activate.max 0, 8, 1; halt
    : Instruction 20 (activate) uses the register DILATION_HEIGHT, which is 0. Set it before: set_configuration
        DILATION_HEIGHT, ...
16 bits without their second plane
    = matrix_multiply.wide 0, 0, 4; halt
    : Instruction 4 (matrix_multiply) uses the register HIGH_OFFSET, which is 0. Set it before: set_configuration
        HIGH_OFFSET, ...
a sum of two without scales
    = set_configuration SECOND_PITCH, 1; set_configuration SECOND_ROWS, 1; activate.add 0, 8, 1; halt
    : Instruction 6 (activate) uses the register SCALE, which is 0. Set it before: set_configuration SCALE, ...
more lanes than a row has
    = <WINDOW>; set_configuration LANES, 33; convolve 0, 0, 1; halt
    : Instruction 20 (convolve) takes LANES = 33 lanes of rows that have 32 (PITCH = 1).
more lanes than the array has
    = <WINDOW>; set_configuration TAPS, 5; convolve 0, 0, 1; halt
    : Instruction 20 (convolve) packs TAPS = 5 taps of LANES = 2 lanes, and the array has 8 rows.
more passes than the window has
    = <WINDOW>; convolve 0, 0, 1, repeat=3; halt
    : Instruction 19 (convolve) starts its last pass with tap 4, and the window has 4 taps, from 0 on.
a zero point that no byte holds
    = <WINDOW>; set_configuration ZERO_POINT, 128; convolve 0, 0, 1; halt
    : Instruction 20 (convolve) reads ZERO_POINT = 128 outside of a source that holds -128 to 127.
a zero point below all bytes
    = <WINDOW>; set_configuration ZERO_POINT, -129; convolve 0, 0, 1; halt
    : Instruction 20 (convolve) reads ZERO_POINT = -129 outside of a source that holds -128 to 127.
a zero point that no unsigned byte holds
    = <WINDOW>; set_configuration ZERO_POINT, -1; convolve.unsigned 0, 0, 1; halt
    : Instruction 20 (convolve) reads ZERO_POINT = -1 outside of a source that holds 0 to 255.
positions that nothing counts
    = <WINDOW>; activate.max.counted 0, 8, 1; halt
    : Instruction 19 (activate) is .counted, and only an average counts the positions of its window. Leave out
        .counted.
sums that are counted
    activate.scale 0, 4, 4 -> activate.scale.counted 0, 4, 4
    : Instruction 12 (activate of 'sigmoid') is .counted, and only an average counts the positions of its window.
        Leave out .counted.
an average by a multiplier without end
    = <WINDOW>; set_configuration SCALE, 2; set_configuration OUT_SCALE, 1e-30; activate.average.counted 0, 8, 1; halt
    : Instruction 21 (activate) multiplies with SCALE / OUT_SCALE = 2.0 / 1.0000000031710769e-30, which must be at
        most 2**100.
a clip that was not set
    = <RIGHT>
    : Instruction 11 (activate of 'sigmoid') clips to HIGH, which was never set. The whole range is LOW = -128, HIGH =
        127.
a clip that no byte holds
    debug_tag 1 -> debug_tag 1; set_configuration HIGH, 128
    : Instruction 13 (activate of 'sigmoid') clips to LOW = -128 and HIGH = 128, which must lie in order within -128
        to 127.
a clip out of order
    debug_tag 1 -> debug_tag 1; set_configuration HIGH, -1; set_configuration LOW, 1
    : Instruction 14 (activate of 'sigmoid') clips to LOW = 1 and HIGH = -1, which must lie in order within -128 to
        127.
weights past the Weight Memory
    = .design weight_memory_bytes=4096; <RIGHT>
    : The weights of 'assembled' take 8,192 bytes, and the Weight Memory has 4,096.
""")


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong(name: str):
    text, expected = WRONG[name]
    head = HEAD.replace("set_configuration HIGH, 127\n", "") if name == "a clip that was not set" else HEAD
    assert refusal(ChipError, check, image_of(text, head)) == expected


def test_a_number_that_does_not_fit_its_field():
    image = image_of(RIGHT)
    code = (MatrixMultiply(0, 0, 1, repeat=300), *image.instructions)
    assert refusal(ChipError, check, dataclasses.replace(image, instructions=code)) == (
        "Instruction 0 (matrix_multiply): repeat must be a number from 1 to 255, not 300."
    )


def test_a_scale_that_is_too_great():
    code = (SetConfiguration(Register.SCALE, 2.0**101), *image_of(RIGHT).instructions)
    assert refusal(ChipError, check, dataclasses.replace(image_of(RIGHT), instructions=code)) == (
        "Instruction 0 (set_configuration): register SCALE must be a float32 number above 0 and at most 2**100, not "
        "2.535301200456459e+30."
    )


@pytest.mark.parametrize("value", ["inf", "nan", "-inf"])
def test_multipliers_that_are_no_numbers(value: str):
    image = dense_image()
    weights = image.weights.copy()
    weights[:64].view("<f4")[8 + 5] = float(value)
    assert refusal(ChipError, check, dataclasses.replace(image, weights=weights)) == (
        f"Instruction 2 (read_weights of 'dense/matmul') reads {value} as the multiplier of lane 5, in block 0 of the "
        "Weight Memory. Multipliers must be finite numbers."
    )


def test_multipliers_that_are_cut_short_end_with_0():
    image = image_of(RIGHT.replace("parameters 0, 1", "parameters 3, 1"))
    weights = np.zeros(3 * 2048 + 64, np.uint8)
    weights[-4:] = np.frombuffer(np.float32("nan").tobytes(), np.uint8)
    for missing in (1, 2, 3, 4, 40):
        check(dataclasses.replace(image, weights=weights[:-missing]))
    with pytest.raises(ChipError, match="reads nan as the multiplier of lane 7, in block 3"):
        check(dataclasses.replace(image, weights=weights))


def test_a_step_of_the_host_finds_what_was_written():
    image = service_image()
    code = tuple(one for one in image.instructions if type(one).__name__ != "WriteHostMemory")
    assert refusal(HazardError, check, dataclasses.replace(image, instructions=code)) == (
        "At instruction 14 (interrupt_host of 'out'), input 'y' is taken from bytes 128 to 255 of the host's buffer, "
        "and nothing has written byte 128. Write it with write_host_memory."
    )


def test_an_interrupt_is_a_wait_for_all():
    image = service_image()
    # What the step makes lies where the input was: nothing else puts bytes 0 to 127 there again.
    service = dataclasses.replace(image.services[0], output=dataclasses.replace(image.inputs[0], tensor="z"))
    code = assemble("read_host_memory 0, 0, 4\nsync matrix, read\nread_weights 1, 1\nmatrix_multiply 0, 0, 4\nhalt")
    whole = dataclasses.replace(image, services=(service,), instructions=image.instructions[:-1] + code.instructions)
    check(whole)


def test_order_passes_from_unit_to_unit():
    # WRITE waits for ACTIVATE, which has waited for MATRIX, which has waited for READ.
    check(image_of(changed("halt", "write_host_memory 256, 0, 4\nhalt")))


def test_two_halves_of_the_accumulators_need_no_sync():
    text = """\
read_host_memory 0, 0, 4
read_weights.parameters 0, 1
read_weights 1, 2
sync matrix, read
matrix_multiply 0, 0, 4
sync activate, matrix
matrix_multiply 0, 8, 4
activate.scale 0, 4, 4
sync write, activate
write_host_memory 128, 4, 4
halt
"""
    check(image_of(text))
    with pytest.raises(HazardError):
        check(
            image_of(
                text.replace("matrix_multiply 0, 8, 4\n", "").replace(
                    "sync write", "matrix_multiply 0, 3, 4\nsync write"
                )
            )
        )


def blocked(tiles: int) -> Image:
    return image_of(f"""\
read_host_memory 0, 0, 4
read_weights 0, 4
read_weights 0, {tiles - 4}
read_weights.parameters 0, 1
sync matrix, read
matrix_multiply 0, 0, 4
sync activate, matrix
activate.scale 0, 4, 4
set_configuration PLANE_STRIDE, 1
sync matrix, activate
matrix_multiply.accumulate 0, 0, 2, repeat={tiles - 1}
sync write, activate
write_host_memory 128, 4, 4
halt
""")


def test_parameters_behind_tiles_that_wait_for_them():
    check(blocked(6))  # One tile in the array, one beside it, four in the FIFO.
    assert refusal(HazardError, check, blocked(7)) == (
        "Instruction 11 (activate) would wait forever (a deadlock): the item that it pops is requested after tiles "
        "that do not fit in the weight FIFO of 4, and these tiles are popped only after it. Request weights in the "
        "order in which they are used."
    )
    check(dataclasses.replace(blocked(7), design=dataclasses.replace(blocked(7).design, weight_fifo_tiles=5)))


def test_in_place_is_right_row_by_row():
    more = """\
sync activate, write
activate.copy 4, 4, 4
set_configuration SCALE, 1
set_configuration SECOND_SCALE, 1
set_configuration OUT_SCALE, 1
set_configuration SECOND_PITCH, 1
set_configuration SECOND_ROWS, 4
activate.add 4, 4, 4, second=4
activate.add 0, 4, 4, second=4
"""
    check(image_of(changed("halt", more + "halt")))
    assert refusal(HazardError, check, image_of(changed("halt", more.replace("ROWS, 4", "ROWS, 2") + "halt"))) == (
        "Instruction 22 (activate of 'sigmoid') writes units 4 to 5 of the Unified Buffer before it has read them all."
    )


def test_high_bytes_may_follow_the_low_ones_at_once():
    text = changed("debug_tag 1", "debug_tag 1\nset_configuration OUT_HIGH_OFFSET, 4")
    check(image_of(text.replace("activate.scale", "activate.scale.wide_out")))


def test_zero_points_as_great_as_the_source_can_hold():
    products = [
        *[f"set_configuration ZERO_POINT, {fill}\nconvolve 0, 0, 1" for fill in (-128, 127)],
        *[f"set_configuration ZERO_POINT, {fill}\nconvolve.unsigned 0, 0, 1" for fill in (0, 255)],
        *[f"set_configuration ZERO_POINT, {fill}\nconvolve.wide 0, 0, 1" for fill in (-32768, 32767)],
    ]
    setup = WINDOW.replace("read_weights 0, 2", "read_weights 0, 6") + "set_configuration HIGH_OFFSET, 2\n"
    head = HEAD.replace("[1, 1, 8], 0, 0.5", "[2, 1, 8], 0, 0.5").replace('.output "y", [1, 1, 8], 128, 0.5\n', "")
    text = setup.replace("read_host_memory 0, 0, 4", "read_host_memory 0, 0, 8") + "\n".join([*products, "halt"])
    check(image_of(text, head.replace(".zero 8192", ".zero 16384")))


def test_weights_need_no_whole_last_block():
    image = image_of(RIGHT)
    check(dataclasses.replace(image, weights=np.zeros(2048 + 64, np.uint8)))
