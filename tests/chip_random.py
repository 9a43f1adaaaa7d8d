"""Random quantized networks: hypothesis draws what they are made of, a seed the numbers in them.

They are drawn to be hard: scales that are powers of two (many sums then lie exactly between two integers), zero points
at the ends of their range, sums that saturate, windows that reach far over the border or not to it.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from hypothesis import strategies as st

from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
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

MOST_NUMBERS = 3000
"""Of a tensor of one example."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A network, and inputs for it in the user's shapes."""

    network: Network
    inputs: tuple[np.ndarray, ...]

    def __repr__(self) -> str:
        network = self.network
        lines = [
            f"{port.tensor}: input, {len(array)} rows" for port, array in zip(network.inputs, self.inputs, strict=True)
        ]
        for node in network.nodes:
            fields = {f.name: getattr(node, f.name) for f in dataclasses.fields(node)[4:]}
            shown = {k: v.shape if isinstance(v, np.ndarray) else v for k, v in fields.items()}
            lines.append(f"{node.output} = {type(node).__name__}{node.inputs} {shown}")
        lines += [f"{name}: {shape} {network.quantizations[name]}" for name, shape in network.shapes.items()]
        return "\n".join(lines)


@st.composite
def cases(draw: st.DrawFn, most_nodes: int = 5, most_channels: int = 20) -> Case:
    """Draw a network and inputs."""
    drawing = _Drawing(draw, most_channels)
    for number in range(draw(st.integers(1, 2))):
        drawing.add_input(number)
    for number in range(draw(st.integers(1, most_nodes))):
        drawing.add_node(number)
    return drawing.case()


class _Drawing:
    """A network in the making."""

    def __init__(self, draw: st.DrawFn, most_channels: int):
        self.draw = draw
        self.most_channels = most_channels
        self.bits = draw(st.sampled_from([8, 8, 8, 16]))
        self.is_exact = draw(st.booleans())  # All scales are powers of two: ties are frequent.
        self.random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.shapes: dict[str, Shape] = {}
        self.quantizations: dict[str, Quantization] = {}
        self.inputs: list[str] = []
        self.nodes: list[Node] = []

    def number(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def any_tensor(self) -> str:
        return self.draw(st.sampled_from(list(self.shapes)))

    # Inputs, scales, zero points.

    def add_input(self, number: int) -> None:
        is_vector = self.draw(st.booleans())
        shape = (1, 1) if is_vector else (self.number(1, 7), self.number(1, 7))
        name = f"x{number}"
        most = min(self.most_channels, MOST_NUMBERS // math.prod(shape))
        self.add(name, (*shape, self.number(1, most)), self.quantization(0.05))
        self.inputs.append(name)

    def quantization(self, about: float) -> Quantization:
        """Draw a quantization of 8 bits with a scale about this (of 16: 256 times less)."""
        about /= 256 ** (self.bits // 8 - 1)
        exponent = round(math.log2(about)) + self.number(-1, 1)
        scale = 2.0**exponent if self.is_exact else about * self.random.uniform(0.5, 2)
        low, high = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        zero_point = self.draw(st.sampled_from([0, 1, -3, low, high]) | st.integers(low, high))
        return Quantization(float(np.float32(scale)), zero_point, self.bits)

    def clip(self, quantization: Quantization) -> tuple[int, int]:
        """Draw the bounds of a result: all, those of ReLU, or any two."""
        ends = quantization.low, quantization.high
        kind = self.draw(st.sampled_from(["none", "none", "relu", "any"]))
        if kind == "none":
            return ends
        if kind == "relu":
            return quantization.zero_point, quantization.high
        first, second = sorted((self.number(*ends), self.number(*ends)))
        return first, second

    # Nodes.

    def add_node(self, number: int) -> None:
        kinds = ["convolution", "convolution", "pool", "elementwise", "table", "movement"]
        draw_kind = getattr(self, f"draw_{self.draw(st.sampled_from(kinds))}")
        # What does not fit (a window larger than its input) becomes a table, which always does.
        self.nodes.append(draw_kind(f"t{number}") or self.draw_table(f"t{number}"))

    def made(self, name: str, shape: Shape, quantization: Quantization) -> bool:
        """Add a tensor, unless its shape is empty or too large."""
        if min(shape) < 1 or math.prod(shape) > MOST_NUMBERS:
            return False
        self.add(name, shape, quantization)
        return True

    def add(self, name: str, shape: Shape, quantization: Quantization) -> None:
        self.shapes[name], self.quantizations[name] = shape, quantization

    def padding(self, kernel: tuple[int, int], dilation: tuple[int, int]) -> Padding:
        """Draw a padding: none, within the window, or any, of which the negative ones crop."""
        kind = self.draw(st.sampled_from(["none", "none", "window", "any"]))
        sides = []
        for size, step in zip(kernel, dilation, strict=True):
            reach = (size - 1) * step
            least, most = {"none": (0, 0), "window": (0, reach), "any": (-2, reach + 2)}[kind]
            sides.append((self.number(least, most), self.number(least, most)))
        return sides[0], sides[1]

    def out_shape(self, shape: Shape, kernel, strides, dilation, padding: Padding, channels: int) -> Shape:
        sizes = []
        for size, window, stride, step, pads in zip(shape[:2], kernel, strides, dilation, padding, strict=True):
            is_left = size + min(0, pads[0]) + min(0, pads[1]) > 0
            sizes.append((size + sum(pads) - (window - 1) * step - 1) // stride + 1 if is_left else 0)
        return sizes[0], sizes[1], channels

    def draw_convolution(self, name: str) -> Node:
        source = self.any_tensor()
        shape = self.shapes[source]
        kernel = (self.number(1, min(3, shape[0] + 1)), self.number(1, min(4, shape[1] + 1)))
        strides, dilation = (self.number(1, 3), self.number(1, 3)), (self.number(1, 2), self.number(1, 2))
        padding = self.padding(kernel, dilation)
        groups = self.draw(st.sampled_from([n for n in range(1, shape[2] + 1) if shape[2] % n == 0]))
        channels = groups * self.number(1, max(1, self.most_channels // groups))
        depth = kernel[0] * kernel[1] * shape[2] // groups
        most = self.draw(st.sampled_from([1, 5, 127])) if self.is_exact else 127  # Small sums are ties more often.
        target = self.quantization(self.unit_scale(source) * 1.5 * math.sqrt(depth) * most / 127)
        if not self.made(name, self.out_shape(shape, kernel, strides, dilation, padding, channels), target):
            kernel = strides = dilation = (1, 1)  # It does not fit: a product at each position does.
            padding = ((0, 0), (0, 0))
            self.add(name, (*shape[:2], channels), target)
        weights = self.random.integers(-most, most + 1, (*kernel, shape[2] // groups, channels), np.int8)
        scales = 2.0 ** self.random.integers(-8, -5, channels) * (1 if self.is_exact else self.random.uniform(0.5, 1))
        bias = self.random.integers(-25 * most, 25 * most + 1, channels).astype(np.int32) * self.number(0, 1)
        whole = weights, scales.astype(np.float32), bias
        return Convolution(name, "", (source,), name, *whole, strides, dilation, padding, groups, *self.clip(target))

    def draw_pool(self, name: str) -> Node | None:
        source, kind = self.any_tensor(), self.draw(st.sampled_from(["max", "average"]))
        shape, quantization = self.shapes[source], self.quantizations[source]
        window = (self.number(1, min(4, shape[0] + 1)), self.number(1, min(4, shape[1] + 1)))
        if self.draw(st.booleans()):
            window = shape[:2]
        strides = (self.number(1, 3), self.number(1, 3))
        padding = self.padding(window, (1, 1))
        target = quantization if kind == "max" else self.quantization(self.unit_scale(source) / 2)
        if not self.made(name, self.out_shape(shape, window, strides, (1, 1), padding, shape[2]), target):
            return None
        return Pool(name, "", (source,), name, kind, window, strides, padding, self.draw(st.booleans()))

    def unit_scale(self, tensor: str) -> float:
        """Return the scale of a tensor as if it were of 8 bits."""
        return self.quantizations[tensor].scale * 256 ** (self.bits // 8 - 1)

    def draw_elementwise(self, name: str) -> Node | None:
        first = self.any_tensor()
        shape, kind = self.shapes[first], self.draw(st.sampled_from(["add", "subtract", "multiply"]))
        fitting = [other for other, have in self.shapes.items() if have in (shape, (1, 1, shape[2]))]
        second = self.draw(st.sampled_from(fitting))
        scales = self.unit_scale(first), self.unit_scale(second)
        target = self.quantization(scales[0] * scales[1] * 150 if kind == "multiply" else 2 * max(scales))
        if not self.made(name, shape, target):
            return None
        return Elementwise(name, "", (first, second), name, kind, *self.clip(target))

    def draw_table(self, name: str) -> Node:
        source = self.any_tensor()
        target = self.quantization(self.unit_scale(source))
        self.add(name, self.shapes[source], target)
        entries = self.random.integers(target.low, target.high + 1, 2**self.bits).astype(target.dtype)
        return Table(name, "", (source,), name, "function", entries)

    def draw_movement(self, name: str) -> Node | None:
        return getattr(self, f"_{self.draw(st.sampled_from(['concatenate', 'slice', 'reshape']))}")(name)

    def _concatenate(self, name: str) -> Node | None:
        source, axis = self.any_tensor(), self.number(0, 2)
        shape, quantization = self.shapes[source], self.quantizations[source]
        others = [axis for axis in range(3)]
        others.remove(axis)
        fitting = [
            tensor
            for tensor, have in self.shapes.items()
            if all(have[n] == shape[n] for n in others) and self.quantizations[tensor] == quantization
        ]
        parts = [source, *self.draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=3))]
        size = sum(self.shapes[part][axis] for part in parts)
        whole = tuple(size if n == axis else shape[n] for n in range(3))
        if not self.made(name, whole, quantization):  # pyright: ignore[reportArgumentType]
            return None
        return Concatenate(name, "", tuple(parts), name, axis)

    def _slice(self, name: str) -> Node | None:
        source, axis = self.any_tensor(), self.number(0, 2)
        shape = self.shapes[source]
        start = self.number(0, shape[axis] - 1)
        stop = self.number(start + 1, shape[axis])
        whole = tuple(stop - start if n == axis else shape[n] for n in range(3))
        self.add(name, whole, self.quantizations[source])  # pyright: ignore[reportArgumentType]
        return Slice(name, "", (source,), name, axis, start, stop)

    def _reshape(self, name: str) -> Node | None:
        source = self.any_tensor()
        height, width, channels = self.shapes[source]
        forms = [(1, 1, height * width * channels), (1, height * width, channels), (width, channels, height)]
        self.add(name, self.draw(st.sampled_from(forms)), self.quantizations[source])
        return Reshape(name, "", (source,), name)

    # The whole.

    def case(self) -> Case:
        used = {tensor for node in self.nodes for tensor in node.inputs}
        inputs = [Port(name, self.shapes[name]) for name in self.inputs if name in used]
        outputs = [Port(node.output, self.shapes[node.output]) for node in self.nodes if node.output not in used]
        known = {port.tensor for port in inputs} | {node.output for node in self.nodes}
        network = Network(
            "random",
            tuple(inputs),
            tuple(outputs),
            {name: shape for name, shape in self.shapes.items() if name in known},
            {name: kind for name, kind in self.quantizations.items() if name in known},
            tuple(self.nodes),
        )
        rows = self.number(1, 4)
        return Case(network, tuple(self.array(port, rows) for port in inputs))

    def array(self, port: Port, rows: int) -> np.ndarray:
        """Return real numbers around every integer of an input, some half way between two, some outside."""
        quantization = self.quantizations[port.tensor]
        steps = self.random.integers(2 * quantization.low - 3, 2 * quantization.high + 4, (rows, *port.shape))
        return ((steps / 2 - quantization.zero_point) * quantization.scale).astype(np.float32)
