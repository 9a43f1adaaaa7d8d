"""What passes the checker gives the same numbers in whatever order the units get to their work.

Each test runs a compiled program again, its instructions in another order: each unit's own stay in order, and only what
a Sync, a FIFO or an interrupt orders stays ordered beside that.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from anytpu.chip.checking import check
from anytpu.chip.compiler import compile_image
from anytpu.chip.graph.nodes import Network
from anytpu.chip.image.image import Image
from anytpu.chip.isa.accesses import parameters_popped, tiles_popped
from anytpu.chip.isa.design import Design
from anytpu.chip.isa.hazards import VectorClocks
from anytpu.chip.isa.instructions import Halt, Instruction, InterruptHost, ReadWeights, SetConfiguration, Sync
from anytpu.chip.isa.issue import RESET, Issued, issue
from anytpu.chip.isa.registers import Register, RegisterKind
from anytpu.chip.isa.units import Unit
from anytpu.chip.machine import run
from quantized_samples import Sketch, inputs_of

ALL = (1 << len(Unit)) - 1
SAME = ((1, 1), (1, 1))
SMALL = Design(array=8, accumulator_rows=64, unified_buffer_bytes=65536)


@dataclasses.dataclass
class Segment:
    """What lies between two interrupts: for each unit its instructions, with what must be done before each."""

    queues: list[list[tuple[Issued, list[int]]]]
    end: Instruction


def segments(image: Image) -> Iterator[Segment]:
    clocks, sources, popped = VectorClocks(), {"tile": [], "parameters": []}, {"tile": 0, "parameters": 0}
    queues: list[list[tuple[Issued, list[int]]]] = [[] for _ in Unit]
    counts = [0 for _ in Unit]
    for issued in issue(image.instructions):
        instruction = issued.instruction
        if isinstance(instruction, Sync):
            clocks.sync(instruction.waiting, instruction.finished)
        elif isinstance(instruction, InterruptHost | Halt):
            clocks.wait_for_all()
            yield Segment(queues, instruction)
            queues = [[] for _ in Unit]
        elif instruction.unit is not None:
            clocks.issue(instruction.unit, issued.number)
            counts[instruction.unit] += 1
            needs = list(clocks._last[instruction.unit])
            if isinstance(instruction, ReadWeights) and instruction.kind != "table":
                sources[instruction.kind] += [counts[Unit.WEIGHTS]] * instruction.count
            for kind, count in (("tile", tiles_popped(instruction)), ("parameters", parameters_popped(instruction))):
                popped[kind] += count
                if count:
                    needs[Unit.WEIGHTS] = max(needs[Unit.WEIGHTS], sources[kind][popped[kind] - 1])
            queues[instruction.unit].append((issued, needs))


def reordered(image: Image, choose: Callable[[list[int]], int]) -> Image:
    code: list[Instruction] = []
    registers, done = dict(RESET), [0 for _ in Unit]
    for segment in segments(image):
        places = [0 for _ in Unit]
        while True:
            heads = [
                unit
                for unit in Unit
                if places[unit] < len(segment.queues[unit])
                and all(have >= need for have, need in zip(done, segment.queues[unit][places[unit]][1], strict=True))
            ]
            if not heads:
                break
            unit = choose(list(heads))
            issued, _ = segment.queues[unit][places[unit]]
            places[unit], done[unit] = places[unit] + 1, done[unit] + 1
            for number, value in issued.registers.items():
                can_be_set = value != 0 or Register(number).kind is not RegisterKind.FLOAT
                if registers[number] != value and can_be_set:
                    code.append(SetConfiguration(number, value))
                    registers[number] = value
            code += [Sync(ALL, ALL), issued.instruction]
        assert places == [len(queue) for queue in segment.queues]
        code.append(segment.end)
    return dataclasses.replace(image, instructions=tuple(code))


def network() -> Network:
    sketch = Sketch(8)
    a = sketch.convolution(sketch.input(9, 8, 3), 20, (3, 3), padding=SAME)
    pooled = sketch.pool("max", a, (2, 2), (2, 2))
    b = sketch.convolution(pooled, 20, (3, 3), padding=SAME)
    average = sketch.pool("average", sketch.elementwise("add", pooled, b), (4, 4))
    dense = sketch.table(sketch.convolution(sketch.reshape(b, 1, 1, 320), 9))
    last, _ = sketch.lstm(steps=3, units=9, features=5)
    return sketch.network(average, sketch.convolution(sketch.negate_on_host(dense), 4), last)


@pytest.fixture(scope="module", params=[SMALL, Design()], ids=["small", "whole"])
def made(request) -> tuple[Image, dict[str, np.ndarray], dict[str, np.ndarray]]:
    quantized = network()
    image = compile_image(quantized, batch=3, design=request.param)
    check(image)
    values = inputs_of(quantized, 3)
    return image, values, run(image, values)


ORDERS: dict[str, Callable[[], Callable[[list[int]], int]]] = {
    "units from first to last": lambda: min,
    "units from last to first": lambda: max,
    "activate first": lambda: lambda heads: min(heads, key=lambda unit: (unit - Unit.ACTIVATE) % 5),
    "matrix first": lambda: lambda heads: min(heads, key=lambda unit: (unit - Unit.MATRIX) % 5),
    "by chance": lambda: random.Random(0).choice,
    "by chance again": lambda: random.Random(1).choice,
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_numbers_are_the_same(made: tuple[Image, dict, dict], order: str):
    image, values, wanted = made
    other = reordered(image, ORDERS[order]())
    found = run(other, values)
    units = [one.unit for one in other.instructions if one.unit is not None]
    assert sorted(units) == sorted(one.unit for one in image.instructions if one.unit is not None)
    assert found.keys() == wanted.keys()
    for tensor, integers in wanted.items():
        np.testing.assert_array_equal(found[tensor], integers, err_msg=tensor)


def test_the_orders_differ(made: tuple[Image, dict, dict]):
    image, _, _ = made
    orders = {tuple(one.unit for one in reordered(image, make()).instructions) for make in ORDERS.values()}
    assert len(orders) >= 5


def test_without_its_syncs_a_program_gives_other_numbers(made: tuple[Image, dict, dict]):
    image, values, wanted = made
    loose = dataclasses.replace(image, instructions=tuple(o for o in image.instructions if not isinstance(o, Sync)))
    differs = 0
    for make in ORDERS.values():
        try:
            found = run(reordered(loose, make()), values)
        except ValueError:  # It read what nothing had written yet.
            differs += 1
        else:
            differs += any(not np.array_equal(found[tensor], wanted[tensor]) for tensor in wanted)
    assert differs
