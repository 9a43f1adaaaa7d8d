"""Where Syncs are put: none is missing, none is superfluous, and work that may overlap does."""

from __future__ import annotations

import dataclasses
import re

import pytest

from anytpu.chip.checking import check
from anytpu.chip.compiler import compile_image
from anytpu.chip.compiler.hoisting import hoist
from anytpu.chip.compiler.ordering import insert_syncs
from anytpu.chip.image.image import Image
from anytpu.chip.isa.accesses import AccessedInstruction, Accesses, AddressRange, Memory
from anytpu.chip.isa.design import TPU_V1
from anytpu.chip.isa.instructions import (
    Activate,
    ArrayInstruction,
    Convolve,
    Instruction,
    InterruptHost,
    MatrixMultiply,
    ReadHostMemory,
    Sync,
    WriteHostMemory,
)
from anytpu.chip.isa.units import Unit
from anytpu.errors import HazardError
from quantized_samples import MIDDLE, SMALL, Sketch

READ, MATRIX, ACTIVATE, WRITE = (1 << unit for unit in (Unit.READ, Unit.MATRIX, Unit.ACTIVATE, Unit.WRITE))
SAME = ((1, 1), (1, 1))


def stretch(start: int, stop: int, memory: Memory = Memory.BUFFER) -> tuple[AddressRange, ...]:
    return (AddressRange(memory, start, stop),)


def sums(start: int, stop: int) -> tuple[AddressRange, ...]:
    return stretch(start, stop, Memory.ACCUMULATORS)


def read(start: int, stop: int) -> AccessedInstruction:
    return AccessedInstruction(ReadHostMemory(0, start, stop - start), Accesses((), stretch(start, stop)))


def multiply(source: tuple[int, int], target: tuple[int, int]) -> AccessedInstruction:
    return AccessedInstruction(MatrixMultiply(0, 0, 1), Accesses(stretch(*source), sums(*target)))


def activate(source: tuple[int, int], target: tuple[int, int]) -> AccessedInstruction:
    return AccessedInstruction(Activate("scale", 0, 0, 1), Accesses(sums(*source), stretch(*target)))


def write(start: int, stop: int) -> AccessedInstruction:
    return AccessedInstruction(WriteHostMemory(0, start, stop - start), Accesses(stretch(start, stop), ()))


def kinds(items: list[AccessedInstruction]) -> list[object]:
    """Return the program as the places of the items, and the Syncs between."""
    program, numbers = insert_syncs(items)
    assert [program[number] for number in numbers] == [item.instruction for item in items]
    places = {number: place for place, number in enumerate(numbers)}
    return [places.get(number, one) for number, one in enumerate(program)]


def test_a_product_waits_for_what_it_reads():
    assert kinds([read(0, 4), multiply((0, 4), (0, 1))]) == [0, Sync(MATRIX, READ), 1]
    assert kinds([read(0, 4), multiply((4, 8), (0, 1))]) == [0, 1]


def test_the_sums_of_a_part_are_activated_while_the_next_are_multiplied():
    items = [
        multiply((0, 4), (0, 8)),
        activate((0, 8), (10, 11)),
        multiply((0, 4), (8, 16)),
        activate((8, 16), (11, 12)),
        multiply((0, 4), (0, 8)),
        activate((0, 8), (12, 13)),
    ]
    assert kinds(items) == [
        0,
        Sync(ACTIVATE, MATRIX),
        1,
        2,
        Sync(ACTIVATE, MATRIX),
        # Before the second Activate is issued, so that the third product waits for the first alone.
        Sync(MATRIX, ACTIVATE),
        3,
        4,
        Sync(ACTIVATE, MATRIX),
        5,
    ]


def test_what_is_known_to_be_done_is_not_waited_for_again():
    items = [read(0, 4), multiply((0, 4), (0, 1)), activate((0, 1), (4, 8)), multiply((4, 8), (0, 1)), write(0, 8)]
    # The write needs what was read and what was activated; the Activate waited for a product that waited for the read.
    assert kinds(items) == [
        0, Sync(MATRIX, READ), 1, Sync(ACTIVATE, MATRIX), 2, Sync(WRITE | MATRIX, ACTIVATE), 3, 4,
    ]  # fmt: skip


def test_one_unit_needs_no_sync_with_itself():
    assert kinds([read(0, 4), read(0, 4), read(2, 3)]) == [0, 1, 2]


def test_what_is_overwritten_must_have_been_read():
    items = [read(0, 4), multiply((0, 4), (0, 1)), read(0, 4), multiply((0, 4), (1, 2))]
    assert kinds(items) == [0, Sync(MATRIX, READ), 1, Sync(READ, MATRIX), 2, Sync(MATRIX, READ), 3]


def test_one_sync_waits_for_two_units():
    items = [
        read(0, 4),
        AccessedInstruction(Activate("copy", 0, 0, 1), Accesses((), stretch(4, 8))),
        multiply((0, 8), (0, 1)),
    ]
    assert kinds(items) == [0, 1, Sync(MATRIX, READ | ACTIVATE), 2]


def test_an_interrupt_waits_for_all():
    items = [read(0, 4), AccessedInstruction(InterruptHost(0), Accesses()), multiply((0, 4), (0, 1))]
    assert kinds(items) == [0, 1, 2]


def picture(bits: int) -> Sketch:
    sketch = Sketch(bits)
    a = sketch.convolution(sketch.input(9, 9, 3), 20, (3, 3), padding=SAME)
    pooled = sketch.pool("max", a, (2, 2), (2, 2))
    both = sketch.elementwise("add", pooled, sketch.convolution(pooled, 20, (3, 3), padding=SAME))
    sketch.convolution(both, 30, (4, 4))
    sketch.convolution(sketch.negate_on_host(both), 3)
    return sketch


def lines(sketch: Sketch) -> list[str]:
    return [node.output for node in sketch.nodes if not any(node.output in other.inputs for other in sketch.nodes)]


def without(image: Image, number: int, unit: int) -> Image:
    """Return an image of which a Sync does not wait for a unit."""
    sync = image.instructions[number]
    assert isinstance(sync, Sync)
    finished = sync.finished & ~unit
    left = (Sync(sync.waiting, finished),) if finished else ()
    program = (*image.instructions[:number], *left, *image.instructions[number + 1 :])
    return dataclasses.replace(image, instructions=program)


@pytest.mark.parametrize("design", [TPU_V1, SMALL, MIDDLE], ids=["256", "8", "40"])
@pytest.mark.parametrize("kind", ["picture", "sequence", "spills"])
def test_every_sync_is_needed(design, kind: str):
    if kind == "picture":
        sketch, batch = picture(8), 3
    elif kind == "sequence":
        sketch, batch = Sketch(16), 2
        sketch.convolution(sketch.concatenate(sketch.lstm(3, 20, 17)[1], 1), 5)
    else:
        sketch, batch = Sketch(), 1
        x = sketch.input(6, 6, 10)
        parts = [sketch.convolution(x, 10, (3, 3), padding=SAME) for _ in range(4)]
        total = parts.pop()
        while parts:
            total = sketch.elementwise("add", total, parts.pop())
        design = dataclasses.replace(design, unified_buffer_bytes=8000 if design is SMALL else 4000)
    image = compile_image(sketch.network(*lines(sketch)), batch=batch, design=design)
    check(image)
    assert (kind == "spills") == any("spilled" in tag.note for tag in image.tags)
    for number, one in enumerate(image.instructions):
        for unit in Unit:
            if isinstance(one, Sync) and one.finished >> unit & 1:
                with pytest.raises(HazardError):
                    check(without(image, number, 1 << unit))


def waits(program: tuple[Instruction, ...]) -> list[str]:
    """Return who waits for whom, and who works, one letter each."""
    letters = []
    for one in program:
        if isinstance(one, Sync):
            letters.append({(MATRIX, ACTIVATE): "m", (ACTIVATE, MATRIX): "a"}.get((one.waiting, one.finished), "s"))
        elif isinstance(one, ArrayInstruction):
            letters.append("M")
        elif isinstance(one, Activate | WriteHostMemory):
            letters.append("A" if isinstance(one, Activate) else "w")
    return letters


def test_a_layer_of_many_rows_alternates_halves_of_the_accumulators():
    # 2,888 rows, more than half of the accumulators: two parts; and of 300 outputs two columns of the array.
    sketch = Sketch()
    image = compile_image(sketch.network(sketch.convolution(sketch.input(19, 19, 8), 300, (3, 3))), batch=10)
    products = [one for one in image.instructions if isinstance(one, Convolve)]
    assert [(one.accumulator, one.rows) for one in products] == [(0, 1445), (1445, 1445)] * 2
    # Each part is written to the host ("w") as soon as it is activated.
    assert re.sub("w+", "w", "".join(waits(image.instructions))) == "sMaAswMamAswMamAswMaAsw"


def test_the_next_layer_starts_before_the_last_rows_of_one_are_done():
    sketch = Sketch()
    a = sketch.convolution(sketch.input(64, 64, 256), 256)
    image = compile_image(sketch.network(sketch.convolution(a, 256)), batch=1)
    first_of_second = [one for one in image.instructions if isinstance(one, MatrixMultiply)][2]
    place = image.instructions.index(first_of_second)
    activates = [number for number, one in enumerate(image.instructions) if isinstance(one, Activate)]
    syncs = [number for number, one in enumerate(image.instructions[:place]) if isinstance(one, Sync)]
    to_matrix = [number for number in syncs if image.instructions[number] == Sync(MATRIX, ACTIVATE)]
    assert to_matrix[-1] < activates[1] < place


def test_a_write_goes_right_behind_what_makes_its_part():
    items = [
        activate((0, 1), (0, 4)),
        activate((0, 1), (4, 8)),
        multiply((20, 24), (0, 1)),
        activate((0, 1), (8, 12)),
        write(0, 4),
        write(2, 6),
        write(8, 12),
        write(30, 31),
    ]
    assert hoist(items) == [0, 4, 1, 5, 2, 3, 6, 7]


def test_a_write_over_another_stays_behind_it():
    first, second = (
        AccessedInstruction(WriteHostMemory(0, n, 4), Accesses(stretch(n, n + 4), stretch(0, 128, Memory.HOST)))
        for n in (0, 8)
    )
    assert hoist([activate((0, 1), (0, 12)), multiply((0, 4), (0, 1)), first, second]) == [0, 2, 3, 1]
