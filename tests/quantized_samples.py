"""Quantized networks drawn by hand, of random numbers, and the comparison of what the chip makes of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from anytpu.chip.checking import check
from anytpu.chip.compiler import compile_image
from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    HostStep,
    Network,
    Node,
    Padding,
    Pool,
    Port,
    Quantization,
    Reshape,
    Shape,
    Slice,
    Table,
)
from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import Design
from anytpu.chip.machine import run
from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.operations import Argument, HostOperations, Operation
from anytpu.chip.quantized.reference import compute_integers

SMALL = Design(array=8, accumulator_rows=64)
MIDDLE = Design(array=40, accumulator_rows=64)
"""More lanes than a unit of 32, so that two parts may share a plane."""

NO_PADDING: Padding = ((0, 0), (0, 0))


class Sketch:
    """A network in the making. Each method adds a node and returns the name of its output."""

    def __init__(self, bits: int = 8, seed: int = 0):
        self.bits = bits
        self.random = np.random.default_rng(seed)
        self.shapes: dict[str, Shape] = {}
        self.quantizations: dict[str, Quantization] = {}
        self.inputs: list[Port] = []
        self.nodes: list[Node] = []

    def quantization(self, bits: int = 0) -> Quantization:
        bits = bits or self.bits
        reach = 2 ** (bits - 4)
        return Quantization(self.scale(0.02, 0.1), int(self.random.integers(-reach, reach)), bits)

    def scale(self, low: float, high: float) -> float:
        return float(np.float32(self.random.uniform(low, high)))

    def tensor(self, shape: Sequence[int], quantization: Quantization | None = None) -> str:
        name = f"t{len(self.shapes)}"
        self.shapes[name] = (shape[0], shape[1], shape[2])
        self.quantizations[name] = quantization or self.quantization()
        return name

    def add(self, kind: type[Node], inputs: Sequence[str], output: str, *fields: object) -> str:
        number = len(self.nodes)
        self.nodes.append(kind(f"node {number}", f"layer {number}", tuple(inputs), output, *fields))
        return output

    def input(self, *shape: int, bits: int = 0) -> str:
        name = self.tensor(shape, self.quantization(bits))
        self.inputs.append(Port(name, shape))
        return name

    def convolution(
        self, x: str, outputs: int, kernel=(1, 1), strides=(1, 1), padding: Padding = NO_PADDING, groups: int = 1,
        dilation=(1, 1), like: Convolution | None = None, quantization: Quantization | None = None,
    ) -> str:  # fmt: skip
        *sizes, channels = self.shapes[x]
        made = [
            (size + sum(pads) - (window - 1) * step - 1) // stride + 1
            for size, pads, window, step, stride in zip(sizes, padding, kernel, dilation, strides, strict=True)
        ]
        output = self.tensor((*made, outputs), quantization)
        target = self.quantizations[output]
        depth = channels // groups
        least = target.scale / self.quantizations[x].scale / math.sqrt(math.prod(kernel) * depth) / 70
        weights = self.random.integers(-127, 128, (*kernel, depth, outputs)).astype(np.int8)
        scales = (least * self.random.uniform(0.3, 1, outputs)).astype(np.float32)
        bias = self.random.integers(-3000, 3000, outputs).astype(np.int32)
        if like is not None:
            weights, scales, bias = like.weights, like.weight_scales, like.bias
        fields = weights, scales, bias, strides, dilation, padding, groups, target.low, target.high
        return self.add(Convolution, [x], output, *fields)

    def pool(self, kind: str, x: str, window, strides=(1, 1), padding: Padding = NO_PADDING, counts=False) -> str:
        *sizes, channels = self.shapes[x]
        made = [
            (size + sum(pads) - reach) // stride + 1
            for size, pads, reach, stride in zip(sizes, padding, window, strides, strict=True)
        ]
        output = self.tensor((*made, channels), self.quantizations[x] if kind == "max" else None)
        return self.add(Pool, [x], output, kind, window, strides, padding, counts)

    def elementwise(self, kind: str, a: str, b: str, quantization: Quantization | None = None) -> str:
        target = quantization or self.quantization()
        if kind == "multiply" and quantization is None:
            target = dataclasses.replace(target, scale=target.scale * 2.0 ** (self.bits - 4))
        output = self.tensor(self.shapes[a], target)
        return self.add(Elementwise, [a, b], output, kind, target.low, target.high)

    def table(self, x: str, bits: int = 0, entries: np.ndarray | None = None) -> str:
        output = self.tensor(self.shapes[x], self.quantization(bits))
        own = self.quantizations[output]
        if entries is None:
            count = 2 ** self.quantizations[x].bits
            entries = self.random.integers(own.low, own.high + 1, count).astype(own.dtype)
        return self.add(Table, [x], output, "tanh", entries)

    def concatenate(self, xs: Sequence[str], axis: int) -> str:
        for x in xs:
            self.quantizations[x] = self.quantizations[xs[0]]
        shape = list(self.shapes[xs[0]])
        shape[axis] = sum(self.shapes[x][axis] for x in xs)
        return self.add(Concatenate, xs, self.tensor(shape, self.quantizations[xs[0]]), axis)

    def cut(self, x: str, axis: int, start: int, stop: int) -> str:
        shape = list(self.shapes[x])
        shape[axis] = stop - start
        return self.add(Slice, [x], self.tensor(shape, self.quantizations[x]), axis, start, stop)

    def reshape(self, x: str, *shape: int) -> str:
        return self.add(Reshape, [x], self.tensor(shape, self.quantizations[x]))

    def negate_on_host(self, x: str, *, is_real: bool = False) -> str:
        """Add a step of the host; `is_real`: what it makes is no tensor of the chip."""
        shape = (2, *self.shapes[x])
        output = self.tensor(self.shapes[x])
        if is_real:
            del self.quantizations[output]
        argument, result = (Argument(name, shape, "float32", BatchLayout(0, 2)) for name in "ab")
        operation = Operation("negate", ("a",), "b", shape, np.dtype("float32"))
        steps = HostOperations((argument,), (operation,), result)
        step = HostStep("negate", "", (x,), output, "negate", "the test says so", steps)
        return self.add(HostStep, [x], output, step.kind, step.why, step.steps)

    def network(self, *outputs: str) -> Network:
        ports = tuple(Port(name, self.shapes[name]) for name in outputs)
        return Network("sketch", tuple(self.inputs), ports, self.shapes, self.quantizations, tuple(self.nodes))

    def lstm(self, steps: int, units: int, features: int) -> tuple[str, list[str]]:
        """Add an LSTM layer, unrolled; return its last state and all of them."""
        x, h, c = self.input(1, steps, features), self.input(1, 1, units), self.input(1, 1, units)
        state = self.quantizations[h] = self.quantizations[x]
        gates, first = self.quantization(), len(self.nodes)
        states: list[str] = []
        for step in range(steps):
            like = self.nodes[first + 2] if step else None
            tables = [node.table for node in self.nodes[first:] if isinstance(node, Table)][:5] or [None] * 5
            both = self.concatenate([self.cut(x, 1, step, step + 1), h], 2)
            z = self.convolution(both, 4 * units, like=like, quantization=gates)  # pyright: ignore[reportArgumentType]
            parts = [self.cut(z, 2, n * units, (n + 1) * units) for n in range(4)]
            i, f, g, o = (self.table(part, entries=entries) for part, entries in zip(parts, tables, strict=False))
            c = self.elementwise("add", self.elementwise("multiply", f, c), self.elementwise("multiply", i, g))
            h = self.elementwise("multiply", o, self.table(c, entries=tables[4]), state)
            states.append(h)
        return h, states


def inputs_of(network: Network, batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random integers for the inputs of a network."""
    random, values = np.random.default_rng(seed), {}
    for port in network.inputs:
        own = network.quantizations[port.tensor]
        shape = (batch, *network.shapes[port.tensor])
        values[port.tensor] = random.integers(own.low, own.high + 1, shape).astype(own.dtype)
    return values


def run_exactly(network: Network, batch: int, design: Design, **settings) -> Image:
    """Compile a network, check the program, run it, and compare all outputs with the reference, bit by bit."""
    image = compile_image(network, batch=batch, design=design, **settings)
    agree(image, network, inputs_of(network, batch))
    return image


def agree(image: Image, network: Network, values: dict[str, np.ndarray]) -> None:
    """Check a program, run it, and compare all outputs with the reference, bit by bit."""
    check(image)
    made, wanted = run(image, values), compute_integers(network, values)
    for port in network.outputs:
        np.testing.assert_array_equal(made[port.tensor], wanted[port.tensor], err_msg=port.tensor)
