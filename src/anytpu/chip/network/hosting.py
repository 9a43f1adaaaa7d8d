"""Steps of the host: adjacent operations of the host as one step, with a name and a reason.

Idea: each hop between chip and host costs an interrupt. So all operations of the host without a node of the chip
between them belong to one step. Each value gets a stage, which grows by one where the host takes a value from the chip.
Values of the same stage can be computed in one step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from anytpu.chip.graph.nodes import HostStep
from anytpu.chip.network import elementwise
from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.operations import HostOperations, Operation
from anytpu.chip.network.placement import OperationPlacement
from anytpu.chip.network.trace import OperationTrace


class HostStepGrouping:
    """The steps of the host in a trace."""

    def __init__(self, trace: OperationTrace, placement: OperationPlacement):
        self._trace, self._placement = trace, placement
        self._stages: dict[str, int] = dict.fromkeys(trace.inputs, 0)
        for operation in trace.operations:
            hosted = placement.is_hosted(operation.result)
            befores = [self._stages[value] + (hosted and not placement.is_hosted(value)) for value in operation.values]
            self._stages[operation.result] = max(befores)
        self._free = self._made_of_inputs()

    def _made_of_inputs(self) -> set[str]:
        """Return the values that the host computes from inputs alone, and that only the host uses.

        Each step that needs such a value computes it again, so it needs no separate step.
        """
        made: set[str] = set(self._trace.inputs)
        for operation in self._trace.operations:
            if self._placement.is_hosted(operation.result) and all(value in made for value in operation.values):
                made.add(operation.result)
        return {
            value
            for value in made
            if all(self._placement.is_hosted(user.result) for user in self._trace.users.get(value, ()))
            and value in self._trace.producers
        }

    def takes(self, result: str) -> Sequence[str]:
        """Return the input values of the step that makes a value."""
        return self._step(result)[0]

    def step(self, result: str, graph: NetworkGraph) -> HostStep:
        """Return the node that makes a value."""
        values, operations = self._step(result)
        kind, main = kind_of(operations)
        layers = [operation.layer for operation in operations if operation.layer]
        return HostStep(
            name=result,
            layer=main.layer or (layers[-1] if layers else ""),
            inputs=tuple(graph.tensor(value) for value in values),
            output=result,
            kind=kind,
            why=_WHYS.get(kind, self._placement.whys[main.result]),
            steps=HostOperations(
                arguments=tuple(self._trace.argument(value) for value in values),
                operations=tuple(map(_small, operations)),
                result=self._trace.argument(result),
            ),
        )

    def _step(self, result: str) -> tuple[list[str], list[Operation]]:
        inside, outside, waiting = {result}, dict[str, None](), [result]
        while waiting:
            for value in self._trace.producers[waiting.pop()].values:
                together = self._stages[value] == self._stages[result] or value in self._free
                if not self._placement.is_hosted(value) or not together:
                    outside[value] = None
                elif value not in inside:
                    inside.add(value)
                    waiting.append(value)
        ordered = sorted(inside, key=lambda value: int(value[1:]))
        return sorted(outside), [self._trace.producers[value] for value in ordered]


def _small(operation: Operation) -> Operation:
    """Return an elementwise operation with unbroadcast constants; return other operations unchanged."""
    if operation.name not in elementwise.NAMES:
        return operation
    parts = [operand if isinstance(operand, str) else _unstretched(operand) for operand in operation.operands]
    return dataclasses.replace(operation, operands=tuple(parts))


def _unstretched(array: np.ndarray) -> np.ndarray:
    return np.array(array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)])


_WHYS = {
    "softmax": "it divides by a sum over channels",
    "log softmax": "it needs a sum over channels",
    "attention": "it multiplies activations with activations, and divides by sums over channels",
    "mask": "it works on booleans, once for all time steps",
    "select": "it chooses between tensors number by number",
    "layer normalization": "it needs the mean and the variance over channels",
}
_IMPORTANT = ("dot_general", "convolution", "gather", "reduce_many", "sort", "reduce", "reduce_window", "transpose")


def kind_of(operations: Sequence[Operation]) -> tuple[str, Operation]:
    """Return the kind of a group of operations, and the operation that is the reason for it.

    Example:
        >>> kind_of(operations)[0]
        'softmax'
    """
    names = [operation.name for operation in operations]
    reducers = {operation.attributes["reducer"] for operation in operations if operation.name == "reduce"}
    main = next(
        (operation for name in _IMPORTANT for operation in operations if operation.name == name), operations[-1]
    )
    is_softmax = {"maximum", "add"} <= reducers and "exponential" in names
    if "dot_general" in names and sum(
        len(operation.values) == 2 for operation in operations if operation.name == "dot_general"
    ):
        return ("attention" if is_softmax else "product of activations"), main
    if is_softmax:
        return ("log softmax" if "log" in names else "softmax"), next(
            operation for operation in operations if operation.name == "reduce"
        )
    if "gather" in names and main.name == "gather" and isinstance(main.operands[0], np.ndarray):
        return "embedding", main
    if "add" in reducers and {"rsqrt", "sqrt"} & set(names):
        return "layer normalization", main
    if names[-2:] == ["convert", "broadcast_in_dim"]:
        return "mask", operations[-1]
    if names[-1] == "select":
        return "select", operations[-1]
    if main.name == "reduce_many":
        return "search", main
    return main.name.replace("chlo.", "").replace("_", " "), main
