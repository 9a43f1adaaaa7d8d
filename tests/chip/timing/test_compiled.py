"""The time model on what the compiler makes: nothing in it depends on programs made by hand."""

import itertools

import numpy as np
import pytest

from anytpu.chip.compiler import compile_image
from anytpu.chip.graph.nodes import Convolution, Network, Port, Quantization
from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import TPU_V1
from anytpu.chip.timing import time


def perceptron(*widths: int) -> Network:
    """Return dense layers with ReLU and weights of one."""
    nodes = []
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        weights = np.ones((1, 1, before, after), np.int8)
        scales, bias = np.full(after, 0.01, np.float32), np.zeros(after, np.int32)
        names = f"dense{number}", f"dense{number}", (f"t{number}",), f"t{number + 1}"
        square = (1, 1)
        nodes.append(
            Convolution(*names, weights, scales, bias, square, square, ((0, 0), (0, 0)), 1, 0, 127)
        )  # fmt: skip
    shapes = {f"t{number}": (1, 1, width) for number, width in enumerate(widths)}
    ports = [(Port(name, shapes[name]),) for name in ("t0", f"t{len(widths) - 1}")]
    quantizations = dict.fromkeys(shapes, Quantization(0.1))
    return Network("perceptron", ports[0], ports[1], shapes, quantizations, tuple(nodes))


@pytest.fixture(scope="module")
def mlp0() -> Image:
    """Something like the first application of the paper: five layers of 2000, a batch of 200."""
    return compile_image(perceptron(*(6 * [2000])), batch=200)


def test_a_perceptron_waits_for_its_weights(mlp0: Image):
    t = time(mlp0, back_to_back=True)
    tiles = 5 * 8 * 8
    assert t.active_cycles == tiles * 200
    assert t.shift_cycles == tiles * 256
    assert t.cycles == pytest.approx(tiles * 65536 / 34e9 * 700e6, rel=0.01)
    assert t.macs == 200 * 5 * 2000 * 2000
    assert t.useful_share == pytest.approx(t.macs / (65536 * t.cycles))
    assert [part.name for part in t.parts] == [f"dense{number}" for number in range(5)]
    assert {part.macs for part in t.parts} == {200 * 2000 * 2000}


def test_alone_it_waits_for_its_input_too(mlp0: Image):
    t = time(mlp0)
    link = 200 * 63 * 32 / (10 * 2**30) * 700e6  # rows of 2000 numbers take 63 units
    assert t.input_wait_cycles == pytest.approx(link, rel=0.05)
    assert t.input_bytes == t.output_bytes == 200 * 63 * 32
    assert t.active_cycles + t.stall_cycles + t.shift_cycles + t.other_cycles == t.cycles


def test_events_of_a_unit_follow_one_another(mlp0: Image):
    t = time(mlp0, events=True)
    for unit in {event.unit for event in t.events}:
        mine = [event for event in t.events if event.unit == unit and event.kind != "shift"]
        assert all(a.stop_cycles <= b.start_cycles for a, b in itertools.pairwise(mine))
    products = [event for event in t.events if event.kind in ("MatrixMultiply", "Convolve")]
    assert sum(event.stop_cycles - event.start_cycles for event in products) == t.active_cycles
    assert len([event for event in t.events if event.kind == "shift"]) == 320
    assert len([event for event in t.events if event.kind == "fetch"]) == 320


def test_spans_are_the_cycles_of_the_parts(mlp0: Image):
    t = time(mlp0, events=True)
    assert (t.spans[0].start_cycles, t.spans[-1].stop_cycles) == (0, t.cycles)
    lengths = [0.0] * len(t.parts)
    for one in t.spans:
        lengths[one.tag] += one.stop_cycles - one.start_cycles
    assert lengths == [
        part.active_cycles + part.stall_cycles + part.shift_cycles + part.other_cycles for part in t.parts
    ]
    for one, following in itertools.pairwise(t.spans):
        assert one.stop_cycles == following.start_cycles and one.tag != following.tag
    assert time(mlp0).spans == time(mlp0, back_to_back=True).spans == ()


def test_an_array_of_another_size_is_compiled_for():
    def compiled(design):
        return compile_image(perceptron(600, 600), batch=96, design=design)

    designs = TPU_V1, TPU_V1.turned({"array": 512})
    small, large = (time(compiled(design), design=design, back_to_back=True) for design in designs)
    assert [t.weight_bytes // t.design.tile_bytes for t in (small, large)] == [9, 4]
    assert large.time_s > 1.5 * small.time_s
