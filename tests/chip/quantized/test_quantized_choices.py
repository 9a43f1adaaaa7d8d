"""What is decided about tensors before any node is made: room for sums, and tensors that change their scale on the way.

Draws networks without layers, as plain JAX functions make them.
"""

from __future__ import annotations

import numpy as np
import pytest

from anytpu.chip.network.nodes import Concatenate, Convolution, Network, Node, Pool, Port, Shape
from anytpu.chip.quantized import quantize, reference, summarize
from anytpu.chip.quantized.choices import choose
from anytpu.chip.quantized.nodes import QPool, QTable, Quantization
from anytpu.chip.quantized.ranges import Range
from anytpu.errors import QuantizationError


def average(source: Shape, made: Shape = (1, 1, 1), layer: str = "", **fields) -> Network:
    """Return a network that is one average, over all positions unless `fields` say otherwise."""
    pool = Pool("mean", layer, ("x",), "mean", "average", fields.pop("window", source[:2]), (1, 1), **fields)
    return Network("wide", (Port("x", source),), (Port("mean", made),), {"x": source, "mean": made}, (pool,))


def test_a_wide_average_of_16_bits_has_room():
    images = np.stack([np.full((300, 300, 1), value, np.float32) for value in (1.0, 0.99, -1.0)])
    network = average((300, 300, 1))
    quantized = quantize(network, images, bits=16)
    table, pool = quantized.nodes
    assert isinstance(table, QTable)
    assert isinstance(pool, QPool)
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
    with pytest.raises(QuantizationError) as caught:
        choose(network, {"x": Range(0, 1), "mean": Range(0, 1)}, bits)
    assert str(caught.value) == (
        f"layer 'pool' averages 16,777,216 positions at once, and sums of 32 bits hold {most} of {bits} bits: average "
        f"smaller windows first, then what they give"
    )


def test_a_change_of_scale_counts_for_a_concatenation_without_a_layer():
    rng = np.random.default_rng(0)
    weights, bias = rng.normal(size=(1, 1, 8, 8)).astype(np.float32), np.zeros(8, np.float32)
    nodes: tuple[Node, ...] = (
        Convolution("coarse", "", ("x",), "coarse", 100 * weights, bias),
        Concatenate("whole", "", ("coarse", "x"), "whole", 2),
    )
    shapes = {"x": (1, 1, 8), "coarse": (1, 1, 8), "whole": (1, 1, 16)}
    network = Network("parts", (Port("x", (8,)),), (Port("whole", (16,)), Port("x", (8,))), shapes, nodes)
    examples = rng.normal(size=(16, 8)).astype(np.float32)
    summary = summarize(network, quantize(network, examples), examples)
    assert [(one.layer, one.kinds) for one in summary.layers] == [
        ("coarse", ("QConvolution",)),
        ("whole", ("QTable", "QConcatenate")),
    ]
