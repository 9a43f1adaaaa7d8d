"""Operations of the host: a few operations of StableHLO, unchanged from the user's program.

Idea: a program is traced for a batch of some size, and its operations have that size in them. A step of the host keeps
them unchanged. Any number of rows goes through in pieces of that size; the last piece is padded with its last row.

Rule: nothing here is code. So a step can be written to a file (`image/serialization.py`), and is checked when it is
read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from anytpu.chip.graph.nodes import HostStep
from anytpu.chip.graph.shapes import canonical_shape
from anytpu.chip.network import arrays, foreign
from anytpu.chip.network.layout import BatchLayout
from anytpu.errors import ChipError
from anytpu.files.memory import check_memory
from anytpu.files.npy import named_dtype


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """One operation, for a whole batch.

    Attributes:
        name: its name in StableHLO, without the dialect ("add", "chlo.erf").
        operands: names of values, or arrays that are the same for every example.
        result: name of the value that it makes.
        shape, dtype: shape and dtype of the result, the batch included.
        attributes: attributes as JSON values; "text" for an operation that `arrays` does not know by name.
        layer: layer of the user's model; "" if unknown.
        number: index of the result, for an operation of several results.
    """

    name: str
    operands: tuple[str | np.ndarray, ...]
    result: str
    shape: tuple[int, ...]
    dtype: np.dtype
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layer: str = ""
    number: int = 0

    @property
    def values(self) -> tuple[str, ...]:
        """The operands that are values."""
        return tuple(operand for operand in self.operands if isinstance(operand, str))

    def compute(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the result, given the values by their names."""
        operands = [values[operand] if isinstance(operand, str) else operand for operand in self.operands]
        return arrays.compute(self.name, operands, self.attributes, self.shape, self.dtype, self.number, self)


@dataclasses.dataclass(frozen=True)
class Argument:
    """An input or the output of a host step.

    Attributes:
        name: name of the value.
        shape, dtype: shape and dtype, with the batch that the program was traced for.
        layout: layout of its examples.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: BatchLayout

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.layout.example_shape(self.shape)


NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError, RecursionError)
"""What Python and NumPy raise for a file whose parts contradict each other."""


@dataclasses.dataclass(frozen=True, eq=False)
class HostOperations:
    """The operations of one `HostStep`.

    Attributes:
        arguments: the inputs, in the order of the node's inputs.
        operations: the operations, in order.
        result: the output.
    """

    arguments: tuple[Argument, ...]
    operations: tuple[Operation, ...]
    result: Argument

    @property
    def rows(self) -> int:
        """The batch that the operations were written for."""
        return self.result.layout.rows

    @property
    def size_bytes(self) -> int:
        """Bytes of all values of a piece; a file may declare any."""
        arguments = [(argument.shape, np.dtype(argument.dtype)) for argument in (*self.arguments, self.result)]
        made = [(operation.shape, operation.dtype) for operation in self.operations]
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in (*arguments, *made))

    def total_bytes(self, batch: int) -> int:
        """Bytes of the values of a piece, and of the results of all pieces of a batch and their concatenation."""
        pieces = -(-batch // max(self.rows, 1))
        one = math.prod(self.result.shape) * max(np.dtype(self.result.dtype).itemsize, 4)
        return self.size_bytes + (2 * pieces * one if pieces > 1 else 0)


def compute(step: HostStep, values: Sequence[np.ndarray]) -> np.ndarray:
    """Return the output of a step of the host, for any number of examples.

    Args:
        step: the node.
        values: its inputs, `(batch, height, width, channels)` each.

    Returns:
        Its output, in the same form; float32, or the dtype of an integer or boolean output.

    Raises:
        ChipError: its operations do not fit each other or its inputs, or need more memory than is free. Then it is
            from a file that was altered.
    """
    steps: HostOperations = step.steps
    count = len(values[0])
    try:
        check_memory(steps.total_bytes(count))
        pieces = [
            _piece(steps, [value[start : start + steps.rows] for value in values])
            for start in range(0, count, steps.rows)
        ]
        return np.concatenate(pieces)[:count] if pieces else np.zeros((0, *canonical_shape(steps.result.example_shape)))
    except ChipError:
        raise
    except (*NONSENSE, jax.errors.JaxRuntimeError) as error:
        why = f"{type(error).__name__}: {(str(error) or 'no reason').splitlines()[0][:200]}"
        raise ChipError(
            f"The host's step {step.name!r:.100} cannot be computed ({why}): its operations make no sense. Compile the "
            "program again."
        ) from error


def _piece(steps: HostOperations, values: list[np.ndarray]) -> np.ndarray:
    known: dict[str, np.ndarray] = {}
    for argument, value in zip(steps.arguments, values, strict=True):
        if len(value) < steps.rows:
            value = np.concatenate([value, np.repeat(value[-1:], steps.rows - len(value), axis=0)])
        known[argument.name] = argument.layout.batched(value, argument.shape).astype(argument.dtype, copy=False)
    for operation in steps.operations:
        result = known[operation.result] = operation.compute(known)
        if result.shape != operation.shape:  # A file may declare any: later operations and `size_bytes` rely on it.
            raise ValueError(f"{operation.name!r:.100} makes {list(result.shape)}, not {list(operation.shape)}")
    result = steps.result.layout.rows_first(known[steps.result.name])
    result = result.reshape(steps.rows, *canonical_shape(steps.result.example_shape))
    return result if result.dtype.kind in "iub" else result.astype(np.float32)


def check(steps: HostOperations) -> None:
    """Check the operations of a step from a file: sizes, layouts, names, and the texts of operations.

    Raises:
        ValueError: they make no sense.
        TypeError: there is no such dtype.
    """
    for argument in (*steps.arguments, steps.result):
        _check_shape(argument.shape)
        named_dtype(argument.dtype)
        layout = argument.layout
        sizes = layout.before, layout.rows, layout.after
        fits = 0 <= layout.axis < len(argument.shape) and min(sizes) >= 1
        if not fits or argument.shape[layout.axis] != math.prod(sizes):
            raise ValueError(f"a batch of {layout!r:.100} in a shape of {argument.shape!r:.100}")
    known = {argument.name: argument.shape for argument in steps.arguments}
    for operation in steps.operations:
        _check_shape(operation.shape)
        if operation.number < 0:
            raise ValueError(f"result {operation.number!r:.100} of an operation")
        if not arrays.is_known(operation.name):
            text = operation.attributes["text"]
            if not isinstance(text, str):
                raise TypeError(f"a text of {text!r:.100}")
            foreign.check(text, operation.shape, operation.dtype, operation.number)
        if unknown := [name for name in operation.values if name not in known]:
            raise ValueError(f"{operation.name!r:.100} of {unknown[0]!r:.100}, which is not made before it")
        known[operation.result] = operation.shape
    if known.get(steps.result.name) != steps.result.shape:
        raise ValueError(f"the result {steps.result.name!r:.100} is not made")


def _check_shape(shape: tuple[int, ...]) -> None:
    if min(shape, default=0) < 0:
        raise ValueError(f"a shape of {shape!r:.100}")
