"""What is decided about tensors before any node is made: room for sums, and tensors that change their scale on the way.

Draws networks without layers, as plain JAX functions make them.
"""

from __future__ import annotations

import numpy as np
import pytest

from anytpu.chip.graph.nodes import (
    UNSCALED,
    Concatenate,
    Convolution,
    Elementwise,
    Function,
    Network,
    Node,
    Pool,
    Port,
    Quantization,
    Shape,
    Table,
)
from anytpu.chip.quantized import quantize, reference, summarize
from anytpu.chip.quantized.choices import choose
from anytpu.chip.quantized.ranges import Range
from anytpu.errors import QuantizationError
from refusals import refusal


def average(source: Shape, made: Shape = (1, 1, 1), layer: str = "", **fields) -> Network:
    """Return a network that is one average, over all positions unless `fields` say otherwise."""
    pool = Pool("mean", layer, ("x",), "mean", "average", fields.pop("window", source[:2]), (1, 1), **fields)
    return Network("wide", (Port("x", source),), (Port("mean", made),), {"x": source, "mean": made}, {}, (pool,))


def test_a_wide_average_of_16_bits_has_room():
    images = np.stack([np.full((300, 300, 1), value, np.float32) for value in (1.0, 0.99, -1.0)])
    network = average((300, 300, 1))
    quantized = quantize(network, images, bits=16)
    table, pool = quantized.nodes
    assert isinstance(table, Table)
    assert isinstance(pool, Pool)
    assert (table.layer, table.inputs, table.output) == ("mean", ("x",), "x/as mean")
    assert pool.inputs == ("x/as mean",)
    known = quantized.quantizations
    assert known["x/as mean"] == Quantization(known["x"].scale * 2, 0, 16)
    assert (table.table.min(), table.table.max()) == (-16384, 16383)
    (found,) = reference.outputs(quantized, reference.compute(quantized, [images]))
    assert np.abs(found.ravel() - [1, 0.99, -1]).max() < 1e-4
    assert min(summarize(network, quantized, images).output_sqnr_db) > 80


@pytest.mark.parametrize(("side", "spare_bits"), [((256, 255), 0), ((256, 256), 1), ((512, 256), 2), ((4096, 2047), 7)])
def test_an_average_gives_up_no_more_bits_than_its_sum_needs(side: tuple[int, int], spare_bits: int):
    network = average((*side, 1))
    choices = choose(network, {"x": Range(-1, 1), "mean": Range(-1, 1)}, 16)
    taken = choices.detours.get(("mean", "x"), "x")
    assert choices.quantizations[taken].scale == choices.quantizations["x"].scale * 2**spare_bits
    low, high = choices.limits.get(taken, (-32768, 32767))
    assert (low, high) == (-(2 ** (15 - spare_bits)), 2 ** (15 - spare_bits) - 1)
    assert side[0] * side[1] * -low < 2**31
    assert not spare_bits or side[0] * side[1] * -low * 2 >= 2**31


def test_only_what_lies_inside_of_a_window_counts_for_its_sum():
    padding = ((200, 200), (200, 200))
    network = average((200, 200, 1), (201, 201, 1), window=(400, 400), padding=padding, counts_padding=True)
    choices = choose(network, {"x": Range(-1, 1), "mean": Range(-1, 1)}, 16)
    assert not choices.detours


@pytest.mark.parametrize(("bits", "most"), [(8, "8,421,504"), (16, "8,388,607")])
def test_an_average_that_no_32_bits_hold(bits: int, most: str):
    network = average((4096, 4096, 1), layer="pool")
    assert refusal(QuantizationError, choose, network, {"x": Range(0, 1), "mean": Range(0, 1)}, bits) == (
        f"layer 'pool' averages 16,777,216 positions at once, and sums of 32 bits hold {most} of {bits} bits: average "
        f"smaller windows first, then what they give"
    )


def test_numbers_that_are_too_small():
    rng = np.random.default_rng(0)
    tiny = (1e-25 * rng.normal(size=(16, 1, 1, 1))).astype(np.float32)
    network = average((1, 1, 1))
    assert refusal(QuantizationError, quantize, network, tiny) == (
        f"input 'x' has numbers from {tiny.min():.3g} to {tiny.max():.3g}, and what the chip scales begins at 1e-20: "
        f"scale them up"
    )
    assert refusal(QuantizationError, choose, network, {"x": Range(-1, 1), "mean": Range(0, 1e-24)}, 16) == (
        "layer 'mean' gives numbers from 0 to 1e-24, and what the chip scales begins at 1e-20: scale them up"
    )


def silent(*nodes: Node, apart: Shape = (1, 1, 4)) -> Network:
    """Return a network of two inputs whose nodes keep the shape of "x"."""
    shapes = {"x": (1, 1, 4), "state": apart, **{node.output: (1, 1, 4) for node in nodes}}
    ports = tuple(Port(name, shapes[name]) for name in ("x", "state"))
    return Network("silent", ports, (Port(nodes[-1].output, (1, 1, 4)),), shapes, {}, nodes)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_tensor_that_was_always_0_has_the_reach_of_what_it_is_made_of(bits: int):
    network = silent(
        Function("relu", "", ("x",), "relu", "relu", lambda x: np.maximum(x, 0)),
        Function("root", "", ("relu",), "root", "sqrt", np.sqrt),
        Elementwise("sum", "", ("root", "state"), "sum", "add"),
    )
    x = -np.linspace(3, 5, 64).reshape(16, 1, 1, 4).astype(np.float32)
    calibration = [x, np.zeros_like(x)]
    quantized = quantize(network, calibration, bits=bits)
    for name, reach in (("relu", 5), ("root", 5), ("state", 1), ("sum", 5)):
        one = quantized.quantizations[name]
        assert one.scale == pytest.approx(2 * reach / (2**bits - 1), rel=1e-4)
        assert abs(one.zero_point) <= 1
    summary = summarize(network, quantized, calibration)
    assert summary.never_active == ("input 'state'", "relu", "root", "sum")
    assert str(summary).splitlines()[-1] == (
        "never active in calibration, so that scales are guesses: input 'state', relu, root, sum"
    )
    # What was not seen is there all the same.
    state = np.full((1, 1, 1, 4), 0.5, np.float32)
    (found,) = reference.outputs(quantized, reference.compute(quantized, [x[:1], state]))
    assert np.abs(found - 0.5).max() < 0.05


def test_what_one_example_of_many_brings_to_life_was_active():
    network = silent(Function("relu", "", ("x",), "relu", "relu", lambda x: np.maximum(x, 0)))
    x = -np.linspace(1, 2, 400).reshape(100, 1, 1, 4).astype(np.float32)
    x[99] = 1.0
    calibration = [x, np.ones_like(x)]
    summary = summarize(network, quantize(network, calibration), calibration)
    assert (summary.compared, summary.never_active) == (32, ())
    assert "never active" not in str(summary)


class Looked(dict[str, Range]):
    """Ranges that count how often one is looked up."""

    times = 0

    def __getitem__(self, name: str) -> Range:
        self.times += 1
        return super().__getitem__(name)


def test_what_is_laid_side_by_side_again_and_again_is_decided_in_linear_time():
    def looked(steps: int) -> int:
        nodes: list[Node] = []
        for step in range(steps):
            before = f"whole {step - 1}" if step else "x"
            nodes.append(Function(f"part {step}", "", ("x",), f"part {step}", "tanh", np.tanh))
            nodes.append(Concatenate(f"whole {step}", "", (before, f"part {step}"), f"whole {step}", 1))
        names = ["x", *(node.output for node in nodes)]
        network = Network("laid", (Port("x", (1, 1, 4)),), (), dict.fromkeys(names, (1, 1, 4)), {}, tuple(nodes))
        ranges = Looked(dict.fromkeys(names, Range(-1, 1)))
        assert len(set(choose(network, ranges, 16).quantizations.values())) == 1
        return ranges.times

    assert looked(80) < 2.1 * looked(40)


def test_a_change_of_scale_counts_for_a_concatenation_without_a_layer():
    rng = np.random.default_rng(0)
    weights, bias = rng.normal(size=(1, 1, 8, 8)).astype(np.float32), np.zeros(8, np.float32)
    nodes: tuple[Node, ...] = (
        Convolution("coarse", "", ("x",), "coarse", 100 * weights, UNSCALED, bias),
        Concatenate("whole", "", ("coarse", "x"), "whole", 2),
    )
    shapes = {"x": (1, 1, 8), "coarse": (1, 1, 8), "whole": (1, 1, 16)}
    network = Network("parts", (Port("x", (8,)),), (Port("whole", (16,)), Port("x", (8,))), shapes, {}, nodes)
    examples = rng.normal(size=(16, 8)).astype(np.float32)
    summary = summarize(network, quantize(network, examples), examples)
    assert [(one.layer, one.kinds) for one in summary.layers] == [
        ("coarse", ("Convolution",)),
        ("whole", ("Table", "Concatenate")),
    ]
