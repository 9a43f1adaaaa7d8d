"""`Graph`: the nodes and the constants of an ONNX graph in the making.

Idea: whoever writes a layer says `graph.add("Add", x, np.int32([1, 2]))` and gets the name of the result; what is an
array becomes a constant on the way.

Rule: every name is unique, and a constant that is used a hundred times (the weights of an unrolled LSTM) stands in the
file once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anytpu.errors import ChipError

Operand = str | np.ndarray | np.generic
"""The name of a value, or a constant."""


def load_onnx() -> Any:
    """Return the package onnx.

    Raises:
        ChipError: it is not installed.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise ChipError(
            "An ONNX model is written by the package onnx, which is not installed. "
            "Install it with: pip install 'anytpu[onnx]'"
        ) from error
    return onnx


class Graph:
    """An ONNX graph in the making.

    Attributes:
        nodes: the nodes so far, in order.
        constants: the constants so far, as tensors of ONNX.
    """

    def __init__(self):
        self._onnx = load_onnx()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._names: set[str] = set()
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def name(self, wanted: str) -> str:
        """Return a name that nothing has yet: the one wanted, or that and a number."""
        name, number = wanted, 1
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name

    def constant(self, value: np.ndarray | np.generic) -> str:
        """Return the name of a constant."""
        array = np.asarray(value, order="C")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            name = self._known[key] = self.name("constant")
            self.constants.append(self._onnx.numpy_helper.from_array(array, name))
        return self._known[key]

    def add(self, kind: str, *operands: Operand, name: str | None = None, **attributes: Any) -> str:
        """Add a node with one result.

        Args:
            kind: its operator ("QLinearConv").
            operands: names of values, and constants as arrays.
            name: what its result is called; None: after its operator.
            attributes: of the operator; those that are None are left out.

        Returns:
            The name of its result.
        """
        inputs = [operand if isinstance(operand, str) else self.constant(operand) for operand in operands]
        output = self.name(kind) if name is None else name
        given = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [output], name=output, **given))
        return output

    def cast(self, value: str, dtype: Any, have: Any = None) -> str:
        """Convert a value to a dtype of NumPy, unless that is what it is known to `have`."""
        if have is not None and np.dtype(have) == np.dtype(dtype):
            return value
        return self.add("Cast", value, to=self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshape(self, value: str, shape: tuple[int, ...]) -> str:
        """Give each example of a value another shape; the first axis, the batch, stays."""
        return self.add("Reshape", value, np.array([0, *shape], np.int64))

    def transpose(self, value: str, order: Sequence[int]) -> str:
        """Put the axes of a value into another order."""
        if list(order) == list(range(len(order))):
            return value
        return self.add("Transpose", value, perm=list(order))
