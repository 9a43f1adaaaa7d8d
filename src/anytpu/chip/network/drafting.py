"""From operations to nodes: each operation that the chip can do as the nodes it needs, one by one.

Rule: nothing is optimized here; `simplifying.py` does that. A value of the trace is a tensor of the draft, with the
same name. A value that is only a view of another value, in the same shape, is that value's tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anytpu.chip.network import hosting
from anytpu.chip.network.constants import per_channel
from anytpu.chip.network.functions import Chain, chain_of
from anytpu.chip.network.graph import Graph
from anytpu.chip.network.movements import Movements
from anytpu.chip.network.nodes import Elementwise, Function
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.placing import Kind, Placing
from anytpu.chip.network.trace import Trace
from anytpu.chip.network.windows import Windows


class Draft:
    """Writes the nodes of a trace into a graph."""

    def __init__(self, trace: Trace, placing: Placing, graph: Graph):
        self._trace, self._placing, self._graph = trace, placing, graph
        self._movements = Movements(trace, graph)
        self._windows = Windows(trace, graph, placing.averages)
        self._hosting = hosting.Hosting(trace, placing)
        self._taken = self._taken_whole()
        self._functions: dict[object, Chain] = {}

    def run(self) -> None:
        """Write all nodes that an output needs."""
        needed = self._needed()
        for one in self._trace.operations:
            if one.result in needed:
                self._write(one)

    def _taken_whole(self) -> set[str]:
        """Return the outputs, and the values that an operation other than a function of one number takes."""
        taken = set(self._trace.outputs)
        for one in self._trace.operations:
            if self._placing.kinds[one.result] is not Kind.ELEMENT:
                taken.update(one.values)
        return taken

    def _needed(self) -> set[str]:
        needed = set(self._trace.outputs)
        for one in reversed(self._trace.operations):
            if one.result in needed:
                needed.update(self._takes(one))
        return needed

    def _takes(self, one: Operation) -> Sequence[str]:
        kind = self._placing.kinds[one.result]
        if kind is Kind.HOST:
            return self._hosting.takes(one.result)
        if kind is Kind.ELEMENT:
            return (self._function(one)[0],)
        return [self._seen_through(value) for value in one.values] if kind is Kind.BINARY else one.values

    def _seen_through(self, value: str) -> str:
        """Return the value that is broadcast over all positions to make `value`, or `value` if it is no broadcast."""
        stretched = self._placing.kinds.get(value) is Kind.BROADCAST
        return self._trace.producers[value].values[0] if stretched else value

    def _function(self, one: Operation) -> tuple[str, list[Operation]]:
        """Return the value that a function of one number is best computed from, and its operations."""
        root = self._placing.roots[one.result]
        near, inside = self._walk(one, {root, *(self._taken - {one.result})})
        return (near.pop(), inside) if len(near) == 1 else (root, self._walk(one, {root})[1])

    def _walk(self, one: Operation, ends: set[str]) -> tuple[set[str], list[Operation]]:
        met, inside, waiting = set(), {one.result}, [one]
        while waiting:
            for value in waiting.pop().values:
                if value in ends:
                    met.add(value)
                elif value not in inside:
                    inside.add(value)
                    waiting.append(self._trace.producers[value])
        ordered = sorted(inside, key=lambda value: int(value[1:]))
        return met, [self._trace.producers[value] for value in ordered]

    def _write(self, one: Operation) -> None:
        kind = self._placing.kinds[one.result]
        if kind is Kind.HOST:
            step = self._hosting.step(one.result, self._graph)
            self._graph.add(step, self._trace.shape(one.result))
        elif kind in (Kind.PRODUCT, Kind.POOL):
            self._windows.write(kind, one)
        elif kind in _WRITERS:
            _WRITERS[kind](self, one)
        else:
            self._movements.write(kind, one)

    def _function_node(self, one: Operation) -> None:
        root, inside = self._function(one)
        function = chain_of(inside, root, self._trace.dtype(root), self._functions)
        source = self._graph.tensor(root)
        self._graph.add(
            Function(one.result, one.layer, (source,), one.result, "function", function), self._trace.shape(one.result)
        )

    def _view(self, one: Operation) -> None:
        self._graph.view(one.values[0], one.result, self._trace.shape(one.result), one.layer)

    def _affine(self, one: Operation) -> None:
        shape, lay = self._trace.shape(one.result), self._trace.lays[one.result]
        (constant,) = [operand for operand in one.operands if isinstance(operand, np.ndarray)]
        number = per_channel(constant, one.shape, lay)
        assert number is not None
        ones, zeros = np.ones(shape[2], np.float32), np.zeros(shape[2], np.float32)
        turned = isinstance(one.operands[0], np.ndarray)
        factor, summand = ones, zeros
        if one.name == "add":
            summand = number
        elif one.name == "subtract":
            factor, summand = (-ones, number) if turned else (ones, -number)
        else:
            factor = number if one.name == "multiply" else 1 / number
        self._graph.affine(one.result, one.layer, self._graph.tensor(one.values[0]), factor, summand)

    def _binary(self, one: Operation) -> None:
        seen = [self._seen_through(value) for value in one.values]
        first, second = [self._graph.tensor(value) for value in seen]
        kind = one.name
        assert kind in ("add", "subtract", "multiply")
        turned = seen[0] != one.values[0]
        if turned:
            first, second = second, first
        # The broadcast operand must be second; if it was first, the difference has the opposite sign.
        opposite = turned and kind == "subtract"
        result, shape = f"{one.result}/opposite" if opposite else one.result, self._trace.shape(one.result)
        self._graph.add(Elementwise(result, one.layer, (first, second), result, kind), shape)
        if opposite:
            ones = np.ones(shape[2], np.float32)
            self._graph.affine(one.result, one.layer, result, -ones, 0 * ones)


_WRITERS = {
    Kind.ELEMENT: Draft._function_node,
    Kind.VIEW: Draft._view,
    Kind.AVERAGE: Draft._view,
    Kind.AFFINE: Draft._affine,
    Kind.BINARY: Draft._binary,
}
