"""`OperationTrace`: the operations of a program that depend on its inputs, with the type and layout of each value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from anytpu.chip.graph.nodes import Shape
from anytpu.chip.graph.shapes import canonical_shape
from anytpu.chip.network.batching import follow
from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.operations import Argument, Operation
from anytpu.chip.network.parsing import TensorType
from anytpu.errors import QuantizationError


@dataclasses.dataclass(frozen=True, eq=False)
class OperationTrace:
    """A program as a flat list of operations.

    Attributes:
        inputs, outputs: names of values, in the user's order.
        operations: the operations that an output depends on, in order.
        producers: maps each value to the operation that makes it.
        users: maps each value to the operations that take it.
        types: shape and dtype of each value, the batch included.
        layouts: layout of the examples in each value.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    producers: Mapping[str, Operation]
    users: Mapping[str, tuple[Operation, ...]]
    types: Mapping[str, TensorType]
    layouts: Mapping[str, BatchLayout]

    @staticmethod
    def of(
        operations: Sequence[Operation],
        types: Mapping[str, TensorType],
        inputs: Mapping[str, BatchLayout],
        outputs: Sequence[str],
    ) -> OperationTrace:
        """Eliminate dead operations, and propagate the batch axis.

        Raises:
            QuantizationError: a value mixes examples, or has no numbers, or 64-bit or complex ones.
        """
        kept = _live(operations, outputs)
        for operation in kept:
            if 0 in operation.shape:
                raise QuantizationError(
                    f"The layer {operation.layer or operation.name!r} makes no numbers, an array of the shape "
                    f"{operation.shape}. Leave it out."
                )
            if operation.dtype.name in ("float64", "complex64", "complex128"):
                raise QuantizationError(
                    f"The layer {operation.layer or operation.name!r} computes with {operation.dtype.name}, and the "
                    "chip's numbers come from float32. Make the model with float32."
                )
        users: dict[str, list[Operation]] = {}
        for operation in kept:
            for value in dict.fromkeys(operation.values):
                users.setdefault(value, []).append(operation)
        layouts = follow(kept, inputs, types)
        trace = OperationTrace(
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            operations=tuple(kept),
            producers={operation.result: operation for operation in kept},
            users={name: tuple(taken) for name, taken in users.items()},
            types=types,
            layouts=layouts,
        )
        for name in outputs:
            trace._check_output(name)
        return trace

    def example(self, name: str) -> tuple[int, ...]:
        """Return the shape of one example of a value."""
        return self.layouts[name].example_shape(self.types[name].shape)

    def shape(self, name: str) -> Shape:
        """Return `(height, width, channels)` of a value."""
        return canonical_shape(self.example(name))

    def dtype(self, name: str) -> np.dtype:
        """Return the dtype of a value."""
        dtype = self.types[name].dtype
        assert dtype is not None
        return dtype

    def is_float(self, name: str) -> bool:
        """Return whether a value is of real numbers."""
        return self.dtype(name).name in ("float32", "bfloat16", "float16")

    def argument(self, name: str) -> Argument:
        """Return a value as an argument of a host step."""
        return Argument(name, self.types[name].shape, self.dtype(name).name, self.layouts[name])

    def _check_output(self, name: str) -> None:
        layout = self.layouts[name]
        if layout.axis != 0 or layout.is_merged:
            raise QuantizationError(
                f"Output {self.outputs.index(name)} has the batch along axis {layout.axis}, or merged with other axes, "
                f"in its shape {self.types[name].shape}: return it with the batch as axis 0."
            )


def _live(operations: Sequence[Operation], outputs: Sequence[str]) -> list[Operation]:
    needed, kept = set(outputs), []
    for operation in reversed(operations):
        if operation.result in needed:
            kept.append(operation)
            needed.update(operation.values)
    return kept[::-1]
