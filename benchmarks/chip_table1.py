"""Networks that fit Table 1 of the TPU's paper: what `chip_table3.py` times. Frozen before any of them was timed.

The paper (Jouppi et al. 2017, arXiv 1704.04760) names six applications and gives, in Table 1, of each the layers by
kind, the nonlinear functions, the weights, the multiply-adds per byte of weights and the batch; never a shape. So every
shape here is a guess that agrees with that table, several guesses an application, and the first of each is the
headline: the plainest reading of the table. `chip_table3.py` chooses one of the three by a counter, and shows the first
beside it. This file was committed before the time model ran on any of them, and a guess is not changed for what it
gives; what turned out to be impossible stays, and is reported.

Read from Table 1 and used: a batch of 200 examples with 200 multiply-adds a byte means that each weight is used once an
example (so a recurrent net is timed for one step, its state goes in and out with the batch). 2888 = 8 * 19 * 19 is a
board of Go, on which every convolution of CNN0 works. 1750 multiply-adds a byte on 100 M weights for a batch of 32 are
5.47 billion multiply-adds an example for CNN1; 72 convolutions and 13 pools are the 69 and 13 of Inception V2 (Ioffe
and Szegedy 2015, figure 5) and three more. Taken from elsewhere in the paper: LSTM1 has matrices of 600 x 600 (section
7), and 8-bit weights with 16-bit activations go at half speed (section 2), which is how recurrent nets are read here.

A "vector layer" is taken as one operation number by number (LSTM0), or as one update of a state or an output (LSTM1):
no one reading gives both of the table's counts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    Network,
    Node,
    Pool,
    Port,
    Quantization,
    Shape,
    Table,
)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of Table 1.

    Attributes:
        dense, convolutions, vectors, pools: layers by kind.
        weights_millions: as printed.
        macs_per_byte: "TPU Ops / Weight Byte", which counts a multiply-add as one.
        batch: examples.
    """

    dense: int
    convolutions: int
    vectors: int
    pools: int
    weights_millions: int
    macs_per_byte: int
    batch: int


TABLE_1 = {
    "MLP0": Row(5, 0, 0, 0, 20, 200, 200),
    "MLP1": Row(4, 0, 0, 0, 5, 168, 168),
    "LSTM0": Row(24, 0, 34, 0, 52, 64, 64),
    "LSTM1": Row(37, 0, 19, 0, 34, 96, 96),
    "CNN0": Row(0, 16, 0, 0, 8, 2888, 8),
    "CNN1": Row(4, 72, 0, 13, 100, 1750, 32),
}


class Sketch:
    """A network that grows layer by layer, and counts itself as Table 1 does. Its weights are all ones."""

    def __init__(self, name: str, bits: int = 8):
        self.name, self.quantization = name, Quantization(2.0**-4, 0, bits)
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.shapes: dict[str, Shape] = {}
        self.nodes: list[Node] = []
        self.dense_layers = self.convolutions = self.vectors = self.pools = self.weights = self.macs = 0

    def network(self) -> Network:
        """Return what has grown; its outputs are those that were named, or the last tensor."""
        outputs = self.outputs or [self.nodes[-1].output]
        ports = [tuple(Port(name, self.shapes[name]) for name in names) for names in (self.inputs, outputs)]
        same = dict.fromkeys(self.shapes, self.quantization)
        return Network(self.name, ports[0], ports[1], self.shapes, same, tuple(self.nodes))

    def _tensor(self, shape: Shape) -> tuple[str, str]:
        tensor = f"t{len(self.shapes)}"
        self.shapes[tensor] = shape
        return f"layer{len(self.nodes)}", tensor

    def input(self, *shape: int) -> str:
        _, tensor = self._tensor((1,) * (3 - len(shape)) + shape)  # type: ignore[arg-type]
        self.inputs.append(tensor)
        return tensor

    def output(self, tensor: str) -> None:
        self.outputs.append(tensor)

    def convolution(self, x: str, channels: int, kernel: int = 1, stride: int = 1, relu: bool = True) -> str:
        height, width, source = self.shapes[x]
        out = (-(-height // stride), -(-width // stride))
        pads = [max((o - 1) * stride + kernel - size, 0) for o, size in zip(out, (height, width), strict=True)]
        node, y = self._tensor((*out, channels))
        weights = np.broadcast_to(np.int8(1), (kernel, kernel, source, channels))
        scales, bias = np.full(channels, 2.0**-8, np.float32), np.zeros(channels, np.int32)
        padding = ((pads[0] // 2, pads[0] - pads[0] // 2), (pads[1] // 2, pads[1] - pads[1] // 2))
        low = 0 if relu else self.quantization.low
        high, strides = self.quantization.high, (stride, stride)
        self.nodes.append(
            Convolution(node, node, (x,), y, weights, scales, bias, strides, (1, 1), padding, 1, low, high)
        )
        self.convolutions += 1
        self.weights += weights.size
        self.macs += weights.size * out[0] * out[1]
        return y

    def dense(self, x: str, features: int, function: str = "") -> str:
        """Add a dense layer: with ReLU, or with a function by table."""
        y = self.convolution(x, features, relu=not function)
        self.convolutions, self.dense_layers = self.convolutions - 1, self.dense_layers + 1
        return self.table(y, function, 0) if function else y

    def table(self, x: str, kind: str, layers: int = 1) -> str:
        node, y = self._tensor(self.shapes[x])
        table = np.zeros(2**self.quantization.bits, self.quantization.dtype)
        self.nodes.append(Table(node, node, (x,), y, kind, table))
        self.vectors += layers
        return y

    def combine(self, kind: str, a: str, b: str, layers: int = 1) -> str:
        """Add, subtract or multiply two tensors."""
        node, y = self._tensor(self.shapes[a])
        low, high = self.quantization.low, self.quantization.high
        self.nodes.append(Elementwise(node, node, (a, b), y, kind, low, high))  # type: ignore[arg-type]
        self.vectors += layers
        return y

    def concatenate(self, *parts: str) -> str:
        height, width, _ = self.shapes[parts[0]]
        node, y = self._tensor((height, width, sum(self.shapes[part][2] for part in parts)))
        self.nodes.append(Concatenate(node, node, parts, y, 2))
        return y

    def pool(self, x: str, kind: str, window: int = 3, stride: int = 1) -> str:
        height, width, channels = self.shapes[x]
        out = (-(-height // stride), -(-width // stride))
        pads = [max((o - 1) * stride + window - size, 0) for o, size in zip(out, (height, width), strict=True)]
        padding = ((pads[0] // 2, pads[0] - pads[0] // 2), (pads[1] // 2, pads[1] - pads[1] // 2))
        return self._pool(x, kind, (*out, channels), (window, window), (stride, stride), padding)

    def global_pool(self, x: str) -> str:
        height, width, channels = self.shapes[x]
        return self._pool(x, "average", (1, 1, channels), (height, width), (height, width), ((0, 0), (0, 0)))

    def _pool(self, x: str, kind: str, shape: Shape, window, strides, padding) -> str:
        node, y = self._tensor(shape)
        self.nodes.append(Pool(node, node, (x,), y, kind, window, strides, padding, False))  # type: ignore[arg-type]
        self.pools += 1
        return y


def multilayer(widths: tuple[int, ...]) -> Sketch:
    sketch = Sketch("mlp")
    x = sketch.input(widths[0])
    for width in widths[1:]:
        x = sketch.dense(x, width)
    return sketch


def cell(sketch: Sketch, x: str, width: int, per_operation: bool) -> str:
    """Add one step of an LSTM cell: four dense layers, and five operations that are five layers, or two."""
    h, c = sketch.input(width), sketch.input(width)
    xh = sketch.concatenate(x, h)
    gates = [sketch.dense(xh, width, kind) for kind in ("sigmoid", "sigmoid", "tanh", "sigmoid")]
    one = int(per_operation)
    kept, added = sketch.combine("multiply", gates[0], c, one), sketch.combine("multiply", gates[1], gates[2], one)
    c = sketch.combine("add", kept, added)
    h = sketch.combine("multiply", gates[3], sketch.table(c, "tanh", one))
    sketch.output(c)
    sketch.output(h)
    return h


def lstm0_cells() -> Sketch:
    """Six cells of 1040, the last four with a residual connection, as in GNMT: 24 dense layers and 34 of vectors."""
    sketch = Sketch("lstm0", 16)
    x = sketch.input(1040)
    for number in range(6):
        h = cell(sketch, x, 1040, True)
        x = sketch.combine("add", h, x) if number >= 2 else h
    sketch.output(x)
    return sketch


def lstm0_context() -> Sketch:
    """Six cells of 768, each with the one below and a context of 1280 as inputs, and four residual connections."""
    sketch = Sketch("lstm0", 16)
    context, x = sketch.input(1280), sketch.input(768)
    for number in range(6):
        h = cell(sketch, sketch.concatenate(context, x), 768, True)
        x = sketch.combine("add", h, x) if number >= 2 else h
    sketch.output(x)
    return sketch


def recurrent_chain(dense: int, width: int, vectors: int) -> Sketch:
    """Square dense layers one after another, vector layers spread evenly among them."""
    sketch = Sketch("chain", 16)
    x, state = sketch.input(width), sketch.input(width)
    for number in range(dense):
        x = sketch.dense(x, width, "sigmoid")
        while sketch.vectors * dense < (number + 1) * vectors:
            x = sketch.combine("multiply" if sketch.vectors % 2 else "add", x, state)
    return sketch


def lstm1_cells(width: int, words: int) -> Sketch:
    """Nine cells and one layer over the words of a language: 37 dense layers; two updates a cell, and one residual."""
    sketch = Sketch("lstm1", 16)
    x = bottom = sketch.input(width)
    for _ in range(9):
        x = cell(sketch, x, width, False)
    sketch.output(sketch.dense(sketch.combine("add", x, bottom), words, "sigmoid"))
    return sketch


def go(first: int, channels: int, threes: int, ones: tuple[int, ...], planes: int = 48) -> Sketch:
    """A network for a board of 19 x 19: one convolution of `first` x `first`, then of 3 x 3, then of 1 x 1."""
    sketch = Sketch("go")
    x = sketch.convolution(sketch.input(19, 19, planes), channels, first)
    for _ in range(threes):
        x = sketch.convolution(x, channels, 3)
    for width in ones:
        x = sketch.convolution(x, width)
    return sketch


_MODULES = (
    # 1x1, 3x3 reduce, 3x3, double 3x3 reduce, double 3x3, pool's projection; 0: the module halves the picture
    (64, 64, 64, 64, 96, 32),
    (64, 64, 96, 64, 96, 64),
    (0, 128, 160, 64, 96, 0),
    (224, 64, 96, 96, 128, 128),
    (192, 96, 128, 96, 128, 128),
    (160, 128, 160, 128, 160, 128),
    (96, 128, 192, 160, 192, 128),
    (0, 128, 192, 192, 256, 0),
    (352, 192, 320, 160, 224, 128),
    (352, 192, 320, 192, 224, 128),
)


def inception_module(sketch: Sketch, x: str, widths: tuple[int, ...], last: bool) -> str:
    one, reduce_three, three, reduce_double, double, projection = widths
    stride = 1 if one else 2
    branches = [sketch.convolution(x, one)] if one else []
    branches.append(sketch.convolution(sketch.convolution(x, reduce_three), three, 3, stride))
    y = sketch.convolution(sketch.convolution(x, reduce_double), double, 3)
    branches.append(sketch.convolution(y, double, 3, stride))
    pooled = sketch.pool(x, "average" if one and not last else "max", 3, stride)
    branches.append(sketch.convolution(pooled, projection) if projection else pooled)
    return sketch.concatenate(*branches)


def inception(side: int, wider: float, more: Callable[[Sketch, str, bool], str], dense: tuple[int, ...]) -> Sketch:
    """Inception V2 for pictures of `side`, `wider` than it was, three more convolutions, and four dense layers.

    The picture comes as blocks of 2 x 2 positions (12 channels), for which the first convolution of 7 x 7 and stride 2
    is one of 4 x 4 and stride 1: the host's usual trick against three channels.
    """
    sketch = Sketch("inception")
    x = sketch.convolution(sketch.input(side // 2, side // 2, 12), round(64 * wider), 4)
    x = sketch.pool(x, "max", 3, 2)
    x = sketch.convolution(sketch.convolution(x, round(64 * wider)), round(192 * wider), 3)
    x = sketch.pool(more(sketch, x, True), "max", 3, 2)
    for widths in _MODULES:
        x = inception_module(sketch, x, tuple(round(wider * width) for width in widths), widths is _MODULES[-1])
    x = sketch.global_pool(more(sketch, x, False))
    for width in dense:
        x = sketch.dense(x, width)
    return sketch


def three_at_the_end(sketch: Sketch, x: str, early: bool) -> str:
    """Three convolutions of 1 x 1 on the last picture."""
    for _ in range(0 if early else 3):
        x = sketch.convolution(x, sketch.shapes[x][2])
    return x


def three_at_the_start(sketch: Sketch, x: str, early: bool) -> str:
    """Three convolutions of 3 x 3 and 200 channels on the picture before the first module."""
    for _ in range(3 if early else 0):
        x = sketch.convolution(x, 200, 3)
    return x


SKETCHES: dict[str, dict[str, Callable[[], Sketch]]] = {
    "MLP0": {
        "even": functools.partial(multilayer, (2000,) * 6),
        "whole tiles": functools.partial(multilayer, (2048, 2048, 2048, 2048, 2048, 1536)),
        "funnel": functools.partial(multilayer, (4096, 2560, 2048, 1536, 512, 256)),
    },
    "MLP1": {
        "even": functools.partial(multilayer, (1118,) * 5),
        "whole tiles": functools.partial(multilayer, (1280, 1024, 1024, 1024, 1536)),
        "funnel": functools.partial(multilayer, (2000, 1500, 1000, 500, 100)),
    },
    "LSTM0": {
        "cells": lstm0_cells,
        "context": lstm0_context,
        "chain": functools.partial(recurrent_chain, 24, 1472, 34),
    },
    "LSTM1": {
        "cells of 600": functools.partial(lstm1_cells, 600, 13480),
        "cells of 664": functools.partial(lstm1_cells, 664, 3392),
        "chain": functools.partial(recurrent_chain, 37, 958, 19),
    },
    "CNN0": {
        "256 channels": functools.partial(go, 5, 256, 13, (64, 1)),
        "even": functools.partial(go, 3, 240, 15, ()),
        "192 planes": functools.partial(go, 3, 236, 15, (), 192),
    },
    "CNN1": {
        "larger pictures": functools.partial(inception, 344, 1.0, three_at_the_end, (6090, 6090, 6090, 1000)),
        "wider": functools.partial(inception, 224, 1.57, three_at_the_end, (5140, 5140, 5140, 1000)),
        "larger stem": functools.partial(inception, 224, 1.0, three_at_the_start, (6160, 6160, 6160, 1000)),
    },
}
"""The guesses of each application; the first is the headline."""

CONTRADICTING: dict[str, dict[str, Callable[[], Sketch]]] = {
    "CNN1": {
        "224 as published": functools.partial(inception, 224, 1.0, three_at_the_end, (6090, 6090, 6090, 1000)),
    },
}
"""What fits Table 1 but for the multiply-adds a byte: kept apart, never the headline."""


def disagreements(sketch: Sketch, row: Row) -> list[str]:
    """Return where a sketch differs from its row of Table 1, by more than its last digit or 3 %."""
    counted = (sketch.dense_layers, sketch.convolutions, sketch.vectors, sketch.pools)
    given = (row.dense, row.convolutions, row.vectors, row.pools)
    found = [] if counted == given else [f"layers {counted}, not {given}"]
    if abs(sketch.weights / 1e6 - row.weights_millions) > max(0.5, 0.01 * row.weights_millions):
        found.append(f"{sketch.weights / 1e6:.1f} M weights, not {row.weights_millions} M")
    macs_per_byte = sketch.macs * row.batch / sketch.weights
    if abs(macs_per_byte / row.macs_per_byte - 1) > 0.03:
        found.append(f"{macs_per_byte:.0f} multiply-adds a byte, not {row.macs_per_byte}")
    return found


if __name__ == "__main__":
    for application, row in TABLE_1.items():
        for title, make in (SKETCHES[application] | CONTRADICTING.get(application, {})).items():
            one = make()
            print(f"{application:6} {title:17} {one.weights / 1e6:6.2f} M weights", disagreements(one, row) or "fits")
