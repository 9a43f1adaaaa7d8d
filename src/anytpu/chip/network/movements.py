"""Data movement as nodes: slices, concatenations, zero padding and reversal, along the chip's three axes."""

from __future__ import annotations

import math

import numpy as np

from anytpu.chip.graph.nodes import Pool
from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.trace import OperationTrace


def _axis(trace: OperationTrace, operation: Operation, axis: int) -> int:
    rank = len(trace.example(operation.values[0]))
    example_axis = trace.layouts[operation.values[0]].example_axis(axis)
    return example_axis + 3 - rank if rank <= 3 else 2 if example_axis == rank - 1 else 1


def concatenate(trace: OperationTrace, graph: NetworkGraph, operation: Operation) -> None:
    """Add a concatenation."""
    inputs = [graph.tensor(value) for value in operation.values]
    axis = _axis(trace, operation, operation.attributes["dimension"])
    graph.joined(operation.result, operation.layer, inputs, axis)


def cut(trace: OperationTrace, graph: NetworkGraph, operation: Operation) -> None:
    """Add a slice, of any steps."""
    (value,) = operation.values
    layout, old = trace.layouts[value], trace.types[value].shape
    source = graph.tensor(value)
    starts, stops, strides = (operation.attributes[name] for name in ("start_indices", "limit_indices", "strides"))
    steps = [1, 1, 1]
    for axis in range(len(old)):
        if axis != layout.axis and (starts[axis], stops[axis]) != (0, old[axis]):
            source = _part(trace, graph, operation, source, axis, starts[axis], stops[axis])
        if axis != layout.axis and strides[axis] != 1:
            steps[_axis(trace, operation, axis)] = strides[axis]
    if steps != [1, 1, 1]:
        source = _steps(graph, operation, source, (steps[0], steps[1]))
    graph.view(source, operation.result, trace.shape(operation.result), operation.layer)


def _part(
    trace: OperationTrace, graph: NetworkGraph, operation: Operation, source: str, axis: int, start: int, stop: int
) -> str:
    chip_axis, example = _axis(trace, operation, axis), trace.example(operation.values[0])
    inner = math.prod(example[1:-1]) if len(example) > 3 and chip_axis == 1 else 1
    name = f"{operation.result}/part{axis}"
    return graph.part(name, operation.layer, source, chip_axis, start * inner, stop * inner)


def _steps(graph: NetworkGraph, operation: Operation, source: str, steps: tuple[int, int]) -> str:
    """Add a strided slice: a max pool with a window of one position."""
    name = f"{operation.result}/steps"
    height, width, channels = graph.shapes[source]
    node = Pool(name, operation.layer, (source,), name, "max", (1, 1), steps)
    graph.add(node, (-(-height // steps[0]), -(-width // steps[1]), channels))
    return name


def pad(trace: OperationTrace, graph: NetworkGraph, operation: Operation) -> None:
    """Add zero padding: a depthwise convolution with weight 1 and that padding."""
    (value,) = operation.values
    layout, source = trace.layouts[value], graph.tensor(value)
    channels = graph.shapes[source][2]
    padding = [(0, 0), (0, 0), (0, 0)]
    low, high = operation.attributes["edge_padding_low"], operation.attributes["edge_padding_high"]
    for axis in range(len(low)):
        if axis != layout.axis:
            padding[_axis(trace, operation, axis)] = (low[axis], high[axis])
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    graph.affine(operation.result, operation.layer, source, ones, zeros, (padding[0], padding[1]))


def reverse(trace: OperationTrace, graph: NetworkGraph, operation: Operation) -> None:
    """Add a reversal, which the chip has not: slices of one position, concatenated in reverse order."""
    (value,) = operation.values
    source, (axis,) = graph.tensor(value), operation.attributes["dimensions"]
    name, layer, chip_axis = operation.result, operation.layer, _axis(trace, operation, axis)
    parts = [
        graph.part(f"{name}/{number}", layer, source, chip_axis, number, number + 1)
        for number in reversed(range(graph.shapes[source][chip_axis]))
    ]
    graph.joined(name, layer, parts, chip_axis)
