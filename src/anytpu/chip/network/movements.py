"""Moving numbers: parts, joins, zeros around, and the other way round, along the chip's three axes."""

from __future__ import annotations

import math

import numpy as np

from anytpu.chip.network.graph import Graph
from anytpu.chip.network.nodes import Concatenate, Convolution, Pool, Slice
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.placing import Kind
from anytpu.chip.network.trace import Trace


class Movements:
    """Writes what moves numbers into a graph."""

    def __init__(self, trace: Trace, graph: Graph):
        self._trace, self._graph = trace, graph

    def write(self, kind: Kind, one: Operation) -> None:
        """Write the nodes of an operation of one of these kinds."""
        {
            Kind.CONCATENATE: self._concatenate,
            Kind.SLICE: self._slice,
            Kind.PAD: self._pad,
            Kind.REVERSE: self._reverse,
        }[kind](one)

    def _axis(self, one: Operation, axis: int) -> int:
        rank = len(self._trace.example(one.values[0]))
        place = self._trace.lays[one.values[0]].example_axis(axis)
        return place + 3 - rank if rank <= 3 else 2 if place == rank - 1 else 1

    def _concatenate(self, one: Operation) -> None:
        inputs = tuple(self._graph.tensor(value) for value in one.values)
        node = Concatenate(one.result, one.layer, inputs, one.result, self._axis(one, one.attributes["dimension"]))
        self._graph.add(node, self._trace.shape(one.result))

    def _slice(self, one: Operation) -> None:
        (value,) = one.values
        lay, old = self._trace.lays[value], self._trace.types[value].shape
        source = self._graph.tensor(value)
        starts, stops, strides = (one.attributes[name] for name in ("start_indices", "limit_indices", "strides"))
        steps = [1, 1, 1]
        for axis in range(len(old)):
            if axis != lay.axis and (starts[axis], stops[axis]) != (0, old[axis]):
                source = self._part(one, source, axis, starts[axis], stops[axis])
            if axis != lay.axis and strides[axis] != 1:
                steps[self._axis(one, axis)] = strides[axis]
        if steps != [1, 1, 1]:
            source = self._steps(one, source, (steps[0], steps[1]))
        self._graph.view(source, one.result, self._trace.shape(one.result), one.layer)

    def _part(self, one: Operation, source: str, axis: int, start: int, stop: int) -> str:
        place, shape = self._axis(one, axis), list(self._graph.shapes[source])
        example = self._trace.example(one.values[0])
        inner = math.prod(example[1:-1]) if len(example) > 3 and place == 1 else 1
        shape[place] = (stop - start) * inner
        name = f"{one.result}/part{axis}"
        node = Slice(name, one.layer, (source,), name, place, start * inner, stop * inner)
        self._graph.add(node, (shape[0], shape[1], shape[2]))
        return name

    def _steps(self, one: Operation, source: str, steps: tuple[int, int]) -> str:
        """Take one position of so many: the greatest of a window of one."""
        name = f"{one.result}/steps"
        height, width, channels = self._graph.shapes[source]
        node = Pool(name, one.layer, (source,), name, "max", (1, 1), steps)
        self._graph.add(node, (-(-height // steps[0]), -(-width // steps[1]), channels))
        return name

    def _pad(self, one: Operation) -> None:
        """Put zeros around: a convolution by one that has a padding."""
        (value,) = one.values
        lay, source = self._trace.lays[value], self._graph.tensor(value)
        channels = self._graph.shapes[source][2]
        padding = [(0, 0), (0, 0), (0, 0)]
        low, high = one.attributes["edge_padding_low"], one.attributes["edge_padding_high"]
        for axis in range(len(low)):
            if axis != lay.axis:
                padding[self._axis(one, axis)] = (low[axis], high[axis])
        node = Convolution(
            name=one.result,
            layer=one.layer,
            inputs=(source,),
            output=one.result,
            weights=np.ones((1, 1, 1, channels), np.float32),
            bias=np.zeros(channels, np.float32),
            padding=(padding[0], padding[1]),
            groups=channels,
        )
        self._graph.add(node, self._trace.shape(one.result))

    def _reverse(self, one: Operation) -> None:
        (value,) = one.values
        source, (axis,) = self._graph.tensor(value), one.attributes["dimensions"]
        place, shape = self._axis(one, axis), list(self._graph.shapes[source])
        count, shape[place], parts = shape[place], 1, []
        for number in reversed(range(count)):
            name = f"{one.result}/{number}"
            node = Slice(name, one.layer, (source,), name, place, number, number + 1)
            self._graph.add(node, (shape[0], shape[1], shape[2]))
            parts.append(name)
        joined = Concatenate(one.result, one.layer, tuple(parts), one.result, place)
        self._graph.add(joined, self._trace.shape(one.result))
