"""`check_network`: check that a quantized network, which may come from a file, makes sense.

Idea: the compiler and the reference trust a network: `quantize` makes only valid ones. A file may hold any other, with
correct checksums. So every rule of `nodes.py` is checked once, when the file is read.

Rule: after this check, a network either compiles or exceeds a memory of the chip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anytpu.chip.graph.arithmetic import convolution_multipliers
from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    HostStep,
    Network,
    Node,
    Padding,
    Pair,
    Pool,
    Port,
    Quantization,
    Reshape,
    Shape,
    Slice,
    Table,
)
from anytpu.chip.graph.shapes import canonical_shape
from anytpu.chip.isa.design import UNIT_BYTES, Design
from anytpu.errors import ChipError
from anytpu.files.npy import named_dtype

MAX_WINDOW = 65535
"""Maximum size, stride and dilation of a window: their registers have 16 bits."""

_MAX_PAD = 32767
_MAX_AXES = 64
"""Maximum number of axes of an array of NumPy, of which the batch takes one."""
_MAX_POOLED = 2**30
"""Maximum number of windows of a pool times the positions of one."""
_MAX_PARTS = 2**17
"""Maximum number of positions or lines that a reshape or a concatenation moves one by one: twice those of a picture of
256 x 256."""
_MAX_SPLIT = 2**24
"""Maximum number of positions before times those after a reshape that splits channels."""
_MAX_BUFFERS = 4
"""Maximum size of a tensor of the chip, in Unified Buffers: one that does not fit is refused by name by the compiler,
and a larger one would keep the compiler busy for minutes before."""


def check_network(network: Network, design: Design) -> None:
    """Check the fields of a network against each other; their types are right.

    Args:
        network: the network.
        design: the chip.

    Raises:
        ChipError: a tensor, a node, an input or an output is invalid; the message names it.
    """
    _Check(network, design).run()


class _Check:
    def __init__(self, network: Network, design: Design):
        self._network, self._design = network, design
        self._shapes, self._quantizations = network.shapes, network.quantizations

    def run(self) -> None:
        for tensor in self._shapes:
            self._part(f"tensor {tensor!r:.100}", lambda tensor=tensor: self._tensor(tensor))
        made: set[str] = set()
        for port in self._network.inputs:
            self._part(f"input {port.tensor!r:.100}", lambda port=port: self._port(port, self._shapes))
            _require(port.tensor not in made, f"The input {port.tensor!r:.100} of its network is there twice")
            made.add(port.tensor)
        for node in self._network.nodes:
            self._part(f"node {node.name!r:.100}", lambda node=node: self._node(node, made))
            made.add(node.output)
        for port in self._network.outputs:
            self._part(f"output {port.tensor!r:.100}", lambda port=port: self._port(port, made))
        _require(bool(self._network.inputs and self._network.outputs), "Its network has no input or no output")

    def _part(self, name: str, check: Callable[[], None]) -> None:
        try:
            check()
        except ChipError as error:
            raise ChipError(f"The {name} of its network is invalid: {error}") from None

    def _tensor(self, tensor: str) -> None:
        shape = self._shapes[tensor]
        _require(min(shape) >= 1, f"its shape is {list(shape)}")
        if tensor in self._quantizations:
            units = math.prod(shape[:2]) * -(-shape[2] // UNIT_BYTES) * (self._quantizations[tensor].bits // 8)
            maximum = _MAX_BUFFERS * self._design.buffer_units
            _require(units <= maximum, f"its shape {list(shape)} is too large for the chip")

    def _port(self, port: Port, known: Any) -> None:
        _require(port.tensor in known and port.tensor in self._shapes, "there is no such tensor")
        _require(len(port.shape) < _MAX_AXES, f"it has {len(port.shape)} axes")
        _require(min(port.shape, default=1) >= 0, f"its shape is {list(port.shape)}")
        shape = self._shapes[port.tensor]
        _require(math.prod(port.shape) == math.prod(shape), f"its shape is {list(port.shape)}, and {list(shape)}")
        try:
            kind = named_dtype(port.dtype).kind
        except TypeError:
            kind = ""
        _require(kind != "" and kind in "biuf", f"its dtype is {port.dtype!r:.100}")

    def _node(self, node: Node, made: set[str]) -> None:
        _require(node.output not in made, f"{node.output!r:.100} is made twice")
        _require(node.output in self._shapes, f"{node.output!r:.100} has no shape")
        for name in node.inputs:
            _require(name in made, f"its input {name!r:.100} is not made before it")
        inputs, output = [self._shapes[name] for name in node.inputs], self._shapes[node.output]
        if isinstance(node, HostStep):
            return self._host_step(node, inputs, output)
        for name in (*node.inputs, node.output):
            _require(name in self._quantizations, f"{name!r:.100} has no quantization")
        kind = type(node)
        expected = 2 if kind is Elementwise else max(1, len(inputs)) if kind is Concatenate else 1
        _require(len(inputs) == expected, f"it has {len(inputs)} inputs")
        given = [self._quantizations[name] for name in node.inputs]
        _RULES[kind](node, inputs, output, given, self._quantizations[node.output])

    def _host_step(self, node: HostStep, inputs: list[Shape], output: Shape) -> None:
        steps = node.steps
        taken = [canonical_shape(argument.example_shape) for argument in steps.arguments]
        _require(taken == inputs, f"its operations take {_listed(taken)}, not {_listed(inputs)}")
        result = canonical_shape(steps.result.example_shape)
        _require(result == output, f"its operations make {list(result)}, not {list(output)}")
        is_real = node.output not in self._quantizations or np.dtype(steps.result.dtype).kind == "f"
        _require(is_real, f"its operations make {steps.result.dtype}, which is not quantized")


def _convolution(
    node: Convolution, inputs: list[Shape], output: Shape, given: list[Quantization], target: Quantization
) -> None:
    weights, outputs = node.weights, output[2]
    is_kernel = weights.dtype == np.int8 and weights.ndim == 4 and weights.size > 0
    _require(is_kernel and weights.min() > -128, f"its weights are {weights.dtype} {list(weights.shape)}")
    _require(node.groups >= 1 and not inputs[0][2] % node.groups and not outputs % node.groups, "its groups")
    depth = inputs[0][2] // node.groups
    _require(weights.shape[2:] == (depth, outputs), f"its weights are of shape {list(weights.shape)}")
    scales, bias = node.weight_scales, node.bias
    _require(scales.dtype == np.float32 and scales.shape == (outputs,), "its weight scales are no vector of float32")
    _require(bool(np.isfinite(scales).all() and (scales > 0).all()), "a weight scale is not above 0")
    _require(bias.dtype == np.int32 and bias.shape == (outputs,), "its bias is no vector of int32")
    with np.errstate(all="ignore"):
        multipliers = convolution_multipliers(given[0], scales, target)
    _require(bool(np.isfinite(multipliers).all()), "its scales have no ratio in float32")
    _window((weights.shape[0], weights.shape[1]), node.strides, node.dilation, node.padding, inputs[0], output)
    _clip(node.low, node.high, target)


def _pool(node: Pool, inputs: list[Shape], output: Shape, given: list[Quantization], target: Quantization) -> None:
    _require(inputs[0][2] == output[2], "it changes the channels")
    _window(node.window, node.strides, (1, 1), node.padding, inputs[0], output)
    _require(math.prod(node.window) * math.prod(output[:2]) <= _MAX_POOLED, f"its window is {list(node.window)}")
    _require(node.kind == "average" or given == [target], "a maximum has the quantization of its input")


def _elementwise(
    node: Elementwise, inputs: list[Shape], output: Shape, given: list[Quantization], target: Quantization
) -> None:
    _require(inputs[0] == output and inputs[1] in (output, (1, 1, output[2])), f"its inputs are {_listed(inputs)}")
    _clip(node.low, node.high, target)


def _table(node: Table, inputs: list[Shape], output: Shape, given: list[Quantization], target: Quantization) -> None:
    _require(inputs == [output], f"it makes {list(output)} of {_listed(inputs)}")
    is_table = node.table.dtype == target.dtype and node.table.shape == (2 ** given[0].bits,)
    _require(is_table, f"its table is {node.table.dtype} {list(node.table.shape)}")


def _concatenate(
    node: Concatenate, inputs: list[Shape], output: Shape, given: list[Quantization], target: Quantization
) -> None:
    _require(0 <= node.axis <= 2, f"its axis is {node.axis}")
    total = sum(shape[node.axis] for shape in inputs)
    joined = [(*shape[: node.axis], total, *shape[node.axis + 1 :]) for shape in inputs]
    _require(all(shape == output for shape in joined), f"it makes {list(output)} of {_listed(inputs)}")
    lines = len(inputs) * (output[0] if node.axis == 1 else 1)
    _require(lines <= _MAX_PARTS, f"it moves {lines:,} lines")
    _same(given, target)


def _slice(node: Slice, inputs: list[Shape], output: Shape, given: list[Quantization], target: Quantization) -> None:
    _require(0 <= node.axis <= 2, f"its axis is {node.axis}")
    shape = inputs[0]
    is_inside = 0 <= node.start < node.stop <= shape[node.axis]
    cut = (*shape[: node.axis], node.stop - node.start, *shape[node.axis + 1 :])
    _require(is_inside and cut == output, f"it is from {node.start} to {node.stop} of {list(shape)}")
    _same(given, target)


def _reshape(
    node: Reshape, inputs: list[Shape], output: Shape, given: list[Quantization], target: Quantization
) -> None:
    _require(math.prod(inputs[0]) == math.prod(output), f"it makes {list(output)} of {_listed(inputs)}")
    before, after = math.prod(inputs[0][:2]), math.prod(output[:2])
    # One position is gathered from all planes before it, if positions are neither kept nor merged.
    is_split = after > 1 and output[2] % inputs[0][2]
    moved = before * after if is_split else max(before, after)
    maximum = _MAX_SPLIT if is_split else _MAX_PARTS
    _require(inputs[0][2] == output[2] or moved <= maximum, f"it moves {moved:,} positions")
    _same(given, target)


_RULES: dict[type[Node], Callable[..., None]] = {
    Convolution: _convolution,
    Pool: _pool,
    Elementwise: _elementwise,
    Table: _table,
    Concatenate: _concatenate,
    Slice: _slice,
    Reshape: _reshape,
}


def _window(kernel: Pair, strides: Pair, dilation: Pair, padding: Padding, source: Shape, target: Shape) -> None:
    for axis in (0, 1):
        sizes, pads = (kernel[axis], strides[axis], dilation[axis]), padding[axis]
        _require(min(sizes) >= 1 and max(sizes) <= MAX_WINDOW, f"its window is {list(kernel)}, {list(strides)}")
        _require(max(map(abs, pads)) <= _MAX_PAD, f"its padding is {list(pads)}")
        positions = (source[axis] + sum(pads) - (kernel[axis] - 1) * dilation[axis] - 1) // strides[axis] + 1
        _require(target[axis] <= positions, f"it has {max(positions, 0)} windows, not {target[axis]}")


def _clip(low: float | None, high: float | None, target: Quantization) -> None:
    _require(isinstance(low, int) and isinstance(high, int), f"it clips to {low} and {high}, not to integers")
    assert low is not None and high is not None
    _require(target.low <= low <= high <= target.high, f"it clips to {low} and {high}")


def _same(given: Sequence[Quantization], target: Quantization) -> None:
    _require(all(own == target for own in given), "its inputs have other quantizations than its output")


def _listed(shapes: Sequence[Shape]) -> str:
    return ", ".join(map(str, map(list, shapes)))


def _require(is_valid: bool, why: str) -> None:
    if not is_valid:
        raise ChipError(f"{why}.")
