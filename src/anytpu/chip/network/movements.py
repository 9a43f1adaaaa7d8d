"""Moving numbers: parts, joins, zeros around, and the other way round, along the chip's three axes."""

from __future__ import annotations

import math

import numpy as np

from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.nodes import Concatenate, Convolution, Pool, Slice
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.placement import LoweringKind
from anytpu.chip.network.trace import OperationTrace


class MovementLowering:
    """Writes what moves numbers into a graph."""

    def __init__(self, trace: OperationTrace, graph: NetworkGraph):
        self._trace, self._graph = trace, graph

    def write(self, kind: LoweringKind, operation: Operation) -> None:
        """Write the nodes of an operation of one of these kinds."""
        {
            LoweringKind.CONCATENATE: self._concatenate,
            LoweringKind.SLICE: self._slice,
            LoweringKind.PAD: self._pad,
            LoweringKind.REVERSE: self._reverse,
        }[kind](operation)

    def _axis(self, operation: Operation, axis: int) -> int:
        rank = len(self._trace.example(operation.values[0]))
        place = self._trace.layouts[operation.values[0]].example_axis(axis)
        return place + 3 - rank if rank <= 3 else 2 if place == rank - 1 else 1

    def _concatenate(self, operation: Operation) -> None:
        inputs = tuple(self._graph.tensor(value) for value in operation.values)
        node = Concatenate(
            operation.result,
            operation.layer,
            inputs,
            operation.result,
            self._axis(operation, operation.attributes["dimension"]),
        )
        self._graph.add(node, self._trace.shape(operation.result))

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
        place, shape = self._axis(operation, axis), list(self._graph.shapes[source])
        example = self._trace.example(operation.values[0])
        inner = math.prod(example[1:-1]) if len(example) > 3 and place == 1 else 1
        shape[place] = (stop - start) * inner
        name = f"{operation.result}/part{axis}"
        node = Slice(name, operation.layer, (source,), name, place, start * inner, stop * inner)
        self._graph.add(node, (shape[0], shape[1], shape[2]))
        return name

    def _steps(self, operation: Operation, source: str, steps: tuple[int, int]) -> str:
        """Take one position of so many: the greatest of a window of one."""
        name = f"{operation.result}/steps"
        height, width, channels = self._graph.shapes[source]
        node = Pool(name, operation.layer, (source,), name, "max", (1, 1), steps)
        self._graph.add(node, (-(-height // steps[0]), -(-width // steps[1]), channels))
        return name

    def _pad(self, operation: Operation) -> None:
        """Put zeros around: a convolution by one that has a padding."""
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
            bias=np.zeros(channels, np.float32),
            padding=(padding[0], padding[1]),
            groups=channels,
        )
        self._graph.add(node, self._trace.shape(operation.result))

    def _reverse(self, operation: Operation) -> None:
        (value,) = operation.values
        source, (axis,) = self._graph.tensor(value), operation.attributes["dimensions"]
        place, shape = self._axis(operation, axis), list(self._graph.shapes[source])
        count, shape[place], parts = shape[place], 1, []
        for number in reversed(range(count)):
            name = f"{operation.result}/{number}"
            node = Slice(name, operation.layer, (source,), name, place, number, number + 1)
            self._graph.add(node, (shape[0], shape[1], shape[2]))
            parts.append(name)
        joined = Concatenate(operation.result, operation.layer, tuple(parts), operation.result, place)
        self._graph.add(joined, self._trace.shape(operation.result))
