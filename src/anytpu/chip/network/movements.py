"""Data movement as nodes: slices, concatenations, zero padding and reversal, along the chip's three axes."""

from __future__ import annotations

import math

import numpy as np

from anytpu.chip.graph.nodes import UNSCALED, Convolution, Pool
from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.placement import LoweringKind
from anytpu.chip.network.trace import OperationTrace


class MovementLowering:
    """Lowers data-movement operations to nodes of a graph."""

    def __init__(self, trace: OperationTrace, graph: NetworkGraph):
        self._trace, self._graph = trace, graph

    def write(self, kind: LoweringKind, operation: Operation) -> None:
        """Add the nodes of an operation of one of these kinds."""
        {
            LoweringKind.CONCATENATE: self._concatenate,
            LoweringKind.SLICE: self._slice,
            LoweringKind.PAD: self._pad,
            LoweringKind.REVERSE: self._reverse,
        }[kind](operation)

    def _axis(self, operation: Operation, axis: int) -> int:
        rank = len(self._trace.example(operation.values[0]))
        example_axis = self._trace.layouts[operation.values[0]].example_axis(axis)
        return example_axis + 3 - rank if rank <= 3 else 2 if example_axis == rank - 1 else 1

    def _concatenate(self, operation: Operation) -> None:
        inputs = [self._graph.tensor(value) for value in operation.values]
        axis = self._axis(operation, operation.attributes["dimension"])
        self._graph.joined(operation.result, operation.layer, inputs, axis)

    def _slice(self, operation: Operation) -> None:
        (value,) = operation.values
        layout, old = self._trace.layouts[value], self._trace.types[value].shape
        source = self._graph.tensor(value)
        starts, stops, strides = (operation.attributes[name] for name in ("start_indices", "limit_indices", "strides"))
        steps = [1, 1, 1]
        for axis in range(len(old)):
            if axis != layout.axis and (starts[axis], stops[axis]) != (0, old[axis]):
                source = self._part(operation, source, axis, starts[axis], stops[axis])
            if axis != layout.axis and strides[axis] != 1:
                steps[self._axis(operation, axis)] = strides[axis]
        if steps != [1, 1, 1]:
            source = self._steps(operation, source, (steps[0], steps[1]))
        self._graph.view(source, operation.result, self._trace.shape(operation.result), operation.layer)

    def _part(self, operation: Operation, source: str, axis: int, start: int, stop: int) -> str:
        chip_axis, example = self._axis(operation, axis), self._trace.example(operation.values[0])
        inner = math.prod(example[1:-1]) if len(example) > 3 and chip_axis == 1 else 1
        name = f"{operation.result}/part{axis}"
        return self._graph.part(name, operation.layer, source, chip_axis, start * inner, stop * inner)

    def _steps(self, operation: Operation, source: str, steps: tuple[int, int]) -> str:
        """Add a strided slice: a max pool with a window of one position."""
        name = f"{operation.result}/steps"
        height, width, channels = self._graph.shapes[source]
        node = Pool(name, operation.layer, (source,), name, "max", (1, 1), steps)
        self._graph.add(node, (-(-height // steps[0]), -(-width // steps[1]), channels))
        return name

    def _pad(self, operation: Operation) -> None:
        """Add zero padding: a depthwise convolution with weight 1 and that padding."""
        (value,) = operation.values
        layout, source = self._trace.layouts[value], self._graph.tensor(value)
        channels = self._graph.shapes[source][2]
        padding = [(0, 0), (0, 0), (0, 0)]
        low, high = operation.attributes["edge_padding_low"], operation.attributes["edge_padding_high"]
        for axis in range(len(low)):
            if axis != layout.axis:
                padding[self._axis(operation, axis)] = (low[axis], high[axis])
        node = Convolution(
            name=operation.result,
            layer=operation.layer,
            inputs=(source,),
            output=operation.result,
            weights=np.ones((1, 1, 1, channels), np.float32),
            weight_scales=UNSCALED,
            bias=np.zeros(channels, np.float32),
            padding=(padding[0], padding[1]),
            groups=channels,
        )
        self._graph.add(node, self._trace.shape(operation.result))

    def _reverse(self, operation: Operation) -> None:
        # The chip has no reversal: concatenate slices of one position, in reverse order.
        (value,) = operation.values
        source, (axis,) = self._graph.tensor(value), operation.attributes["dimensions"]
        name, layer, chip_axis = operation.result, operation.layer, self._axis(operation, axis)
        parts = [
            self._graph.part(f"{name}/{number}", layer, source, chip_axis, number, number + 1)
            for number in reversed(range(self._graph.shapes[source][chip_axis]))
        ]
        self._graph.joined(name, layer, parts, chip_axis)
