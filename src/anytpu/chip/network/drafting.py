"""`TraceLowering`: lower each operation of a trace to nodes of a graph, one by one.

Rule: nothing is optimized here; `simplifying.py` does that. A value of the trace is a tensor of the draft, with the
same name. A value that is only a view of another value, in the same shape, is that value's tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from anytpu.chip.graph.nodes import Elementwise, Function, Pool, Shape
from anytpu.chip.network import hosting, movements, repeats, windows
from anytpu.chip.network.constants import per_channel
from anytpu.chip.network.functions import OperationChain, chain_from
from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.placement import LoweringKind, OperationPlacement
from anytpu.chip.network.trace import OperationTrace


class TraceLowering:
    """Lowers the operations of a trace to nodes of a graph."""

    def __init__(self, trace: OperationTrace, placement: OperationPlacement, graph: NetworkGraph):
        self._trace, self._placement, self._graph = trace, placement, graph
        self._hosting = hosting.HostStepGrouping(trace, placement)
        self._taken = self._taken_whole()
        self._functions: dict[object, OperationChain] = {}

    def run(self) -> None:
        """Add all nodes that an output needs."""
        needed = self._needed()
        for operation in self._trace.operations:
            if operation.result in needed:
                self._write(operation)

    def _taken_whole(self) -> set[str]:
        """Return the outputs, and the operands of operations other than scalar functions."""
        taken = set(self._trace.outputs)
        for operation in self._trace.operations:
            if self._placement.kinds[operation.result] is not LoweringKind.ELEMENT:
                taken.update(operation.values)
        return taken

    def _needed(self) -> set[str]:
        needed = set(self._trace.outputs)
        for operation in reversed(self._trace.operations):
            if operation.result in needed:
                needed.update(self._takes(operation))
        return needed

    def _takes(self, operation: Operation) -> Sequence[str]:
        kind = self._placement.kinds[operation.result]
        if kind is LoweringKind.HOST:
            return self._hosting.takes(operation.result)
        if kind is LoweringKind.ELEMENT:
            return (self._function(operation)[0],)
        return (
            [self._seen_through(value) for value in operation.values]
            if kind is LoweringKind.BINARY
            else operation.values
        )

    def _seen_through(self, value: str) -> str:
        """Return the value that is broadcast over all positions to make `value`, or `value` if it is no broadcast."""
        stretched = self._placement.kinds.get(value) is LoweringKind.BROADCAST
        return self._trace.producers[value].values[0] if stretched else value

    def _function(self, operation: Operation) -> tuple[str, list[Operation]]:
        """Return the input value of a scalar function, and its operations.

        The input is the nearest value that is computed anyway, if there is only one; otherwise the root.
        """
        root = self._placement.roots[operation.result]
        near, inside = self._walk(operation, {root, *(self._taken - {operation.result})})
        return (near.pop(), inside) if len(near) == 1 else (root, self._walk(operation, {root})[1])

    def _walk(self, operation: Operation, ends: set[str]) -> tuple[set[str], list[Operation]]:
        met, inside, waiting = set(), {operation.result}, [operation]
        while waiting:
            for value in waiting.pop().values:
                if value in ends:
                    met.add(value)
                elif value not in inside:
                    inside.add(value)
                    waiting.append(self._trace.producers[value])
        ordered = sorted(inside, key=lambda value: int(value[1:]))
        return met, [self._trace.producers[value] for value in ordered]

    def _write(self, operation: Operation) -> None:
        kind = self._placement.kinds[operation.result]
        if kind is LoweringKind.HOST:
            step = self._hosting.step(operation.result, self._graph)
            self._graph.add(step, self._trace.shape(operation.result))
        elif kind is LoweringKind.POOL:
            windows.pool(self._trace, self._graph, operation, self._placement.averages.get(operation.result))
        elif kind in _WRITERS:
            _WRITERS[kind](self, operation)
        else:
            _MOVERS[kind](self._trace, self._graph, operation)

    def _function_node(self, operation: Operation) -> None:
        root, inside = self._function(operation)
        function = chain_from(inside, root, self._trace.dtype(root), self._functions)
        source = self._graph.tensor(root)
        self._graph.add(
            Function(operation.result, operation.layer, (source,), operation.result, "function", function),
            self._trace.shape(operation.result),
        )

    def _view(self, operation: Operation) -> None:
        self._graph.view(operation.values[0], operation.result, self._trace.shape(operation.result), operation.layer)

    def _affine(self, operation: Operation) -> None:
        shape, layout = self._trace.shape(operation.result), self._trace.layouts[operation.result]
        (constant,) = [operand for operand in operation.operands if isinstance(operand, np.ndarray)]
        number = per_channel(constant, operation.shape, layout)
        assert number is not None
        unit, zeros = np.ones(shape[2], np.float32), np.zeros(shape[2], np.float32)
        turned = isinstance(operation.operands[0], np.ndarray)
        factor, offset = unit, zeros
        if operation.name == "add":
            offset = number
        elif operation.name == "subtract":
            factor, offset = (-unit, number) if turned else (unit, -number)
        else:
            factor = number if operation.name == "multiply" else 1 / number
        self._graph.affine(operation.result, operation.layer, self._graph.tensor(operation.values[0]), factor, offset)

    def _binary(self, operation: Operation) -> None:
        if operation.name in ("maximum", "minimum"):
            return self._extreme(operation)
        seen = [self._seen_through(value) for value in operation.values]
        first, second = [self._graph.tensor(value) for value in seen]
        kind = operation.name
        assert kind in ("add", "subtract", "multiply")
        turned = seen[0] != operation.values[0]
        if turned:
            first, second = second, first
        # The broadcast operand must be second; if it was first, the difference has the opposite sign.
        opposite = turned and kind == "subtract"
        result, shape = (
            f"{operation.result}/opposite" if opposite else operation.result,
            self._trace.shape(operation.result),
        )
        self._graph.add(Elementwise(result, operation.layer, (first, second), result, kind), shape)
        if opposite:
            unit = np.ones(shape[2], np.float32)
            self._graph.affine(operation.result, operation.layer, result, -unit, 0 * unit)

    def _extreme(self, operation: Operation) -> None:
        """Add the maximum of two tensors: a max pool over one above the other. A minimum is -max(-a, -b)."""
        height, width, channels = shape = self._trace.shape(operation.result)
        name, layer, flat = operation.result, operation.layer, (1, height * width, channels)
        lines = [self._graph.shaped(value, flat, layer) for value in operation.values]
        if operation.name == "minimum":
            lines = [self._negated(f"{name}/{index}", layer, line, flat) for index, line in enumerate(lines)]
        both = self._graph.joined(f"{name}/both", layer, lines, 0)
        most = Pool(f"{name}/most", layer, (both,), f"{name}/most", "max", (2, 1), (1, 1))
        self._graph.add(most, flat)
        made = most.output
        if operation.name == "minimum":
            made = self._negated(f"{name}/least", layer, made, flat)
        self._graph.view(made, name, shape, layer)

    def _negated(self, name: str, layer: str, source: str, shape: Shape) -> str:
        real = np.dtype(np.float32)
        negate = [Operation("negate", ("x",), "%0", (), real)]
        function = chain_from(negate, "x", real, self._functions)
        self._graph.add(Function(name, layer, (source,), name, "negate", function), shape)
        return name


_WRITERS = {
    LoweringKind.ELEMENT: TraceLowering._function_node,
    LoweringKind.VIEW: TraceLowering._view,
    LoweringKind.AVERAGE: TraceLowering._view,
    LoweringKind.AFFINE: TraceLowering._affine,
    LoweringKind.BINARY: TraceLowering._binary,
}

_MOVERS: dict[LoweringKind, Callable[[OperationTrace, NetworkGraph, Operation], None]] = {
    LoweringKind.CONCATENATE: movements.concatenate,
    LoweringKind.PAD: movements.pad,
    LoweringKind.PERMUTE: repeats.permute,
    LoweringKind.PICK: repeats.pick,
    LoweringKind.PRODUCT: windows.multiply,
    LoweringKind.REPEAT: repeats.repeat,
    LoweringKind.REVERSE: movements.reverse,
    LoweringKind.SLICE: movements.cut,
}
