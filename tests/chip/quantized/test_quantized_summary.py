"""Bytes before and after, the error of each layer, and how many labels are still right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anytpu.chip.graph.nodes import UNSCALED, Convolution, Function, HostStep, Network, Port, Slice
from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.operations import Argument, HostOperations, Operation
from anytpu.chip.quantized import Summary, quantize, reference, summarize
from anytpu.chip.quantized import summary as summary_module
from anytpu.chip.quantized.reference import compute as evaluate
from anytpu.chip.quantized.summary import weight_bytes

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(1, 1, 4, 6)).astype(np.float32)
BIAS = RNG.normal(size=6).astype(np.float32)
X = RNG.normal(size=(100, 4)).astype(np.float32)


def network() -> Network:
    """Return a product used twice in a layer, a function, and a layer of its own for a part of it."""
    nodes = (
        Convolution("a", "twice", ("x",), "a", WEIGHTS, UNSCALED, BIAS),
        Convolution("b", "twice", ("x",), "b", WEIGHTS, UNSCALED, BIAS, low=0.0),
        Function("c", "curve", ("a",), "c", "function", np.abs),
        Slice("d", "", ("c",), "d", 2, 0, 3),
    )
    shapes = {"x": (1, 1, 4), **dict.fromkeys("abc", (1, 1, 6)), "d": (1, 1, 3)}
    return Network("net", (Port("x", (4,)),), (Port("d", (3,)), Port("b", (6,))), shapes, {}, nodes)


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarize(network(), quantize(network(), X), X)


def test_bytes_of_shared_weights_count_once(summary: Summary):
    assert [layer.layer for layer in summary.layers] == ["twice", "curve", "d"]
    assert [layer.kinds for layer in summary.layers] == [("Convolution",), ("Table",), ("Slice",)]
    assert [layer.float_bytes for layer in summary.layers] == [4 * (24 + 6), 0, 0]
    assert [layer.quantized_bytes for layer in summary.layers] == [24 + 4 * 6 + 4 * 6, 0, 0]
    assert (summary.float_bytes, summary.quantized_bytes) == (120, 72)
    assert (summary.name, summary.bits, summary.examples, summary.compared) == ("net", 8, 100, 32)


def test_the_error_is_that_of_the_last_tensor_of_a_layer(summary: Summary):
    quantized = quantize(network(), X)
    exact, ours = evaluate(network(), [X[:32]]), reference.compute(quantized, [X[:32]])

    def decibels(name: str) -> float:
        lost = quantized.quantizations[name].dequantize(ours[name]) - exact[name]
        return 10 * math.log10(np.square(exact[name], dtype=float).sum() / np.square(lost, dtype=float).sum())

    assert [layer.sqnr_db for layer in summary.layers] == pytest.approx([decibels(name) for name in "bcd"], abs=1e-4)
    assert summary.output_sqnr_db == pytest.approx([decibels("d"), decibels("b")], abs=1e-4)
    assert summary.worst == min(summary.layers, key=lambda layer: layer.sqnr_db)


def test_few_examples_are_compared_when_that_takes_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(summary_module, "_MACS", 48 * 5)
    quantized = quantize(network(), X)
    assert summarize(network(), quantized, X).compared == 5
    assert summarize(network(), quantized, X[:3]).compared == 3


def test_the_table_that_is_printed(summary: Summary):
    errors = [f"{layer.sqnr_db:.1f}" for layer in summary.layers]
    assert str(summary).splitlines() == [
        "layer    float32       int8  SQNR dB",
        f"twice      120 B       72 B     {errors[0]}",
        f"curve                           {errors[1]}",
        f"d                               {errors[2]}",
        f"sum        120 B       72 B {summary.output_sqnr_db[0]:.1f}, {summary.output_sqnr_db[1]:.1f}",
    ]


def test_a_layer_of_zeros_loses_nothing():
    zero = Convolution("a", "zero", ("x",), "a", 0 * WEIGHTS, UNSCALED, 0 * BIAS)
    shapes = {"x": (1, 1, 4), "a": (1, 1, 6)}
    dead = Network("net", (Port("x", (4,)),), (Port("a", (6,)),), shapes, {}, (zero,))
    assert summarize(dead, quantize(dead, X), X).output_sqnr_db == (math.inf,)


def test_what_the_host_keeps_stays_as_large():
    held = np.zeros((50, 8), np.float32)
    gather = Operation("gather", (held, "x"), "y", (1, 8), np.dtype("float32"))
    arguments = [
        Argument(name, shape, dtype, BatchLayout(0, 1))
        for name, shape, dtype in (("x", (1,), "int32"), ("y", (1, 8), "float32"))
    ]
    host = HostStep(
        "e", "words", ("x",), "y", "embedding", "", HostOperations((arguments[0],), (gather,), arguments[1])
    )
    assert weight_bytes([host]) == (1600, 1600)
