"""`OnnxGraph`: a builder of the nodes and constants of an ONNX graph.

Idea: `graph.add("Add", x, np.int32([1, 2]))` adds a node and returns the name of its result. An operand that is an
array becomes a constant.

Rule: every name is unique. Equal constants, such as the weights of an unrolled LSTM, are stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anytpu.chip.graph.names import Names
from anytpu.errors import ChipError

Operand = str | np.ndarray | np.generic
"""The name of a value, or the array of a constant."""


def load_onnx() -> Any:
    """Return the package onnx.

    Raises:
        ChipError: onnx is not installed.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise ChipError(
            "An ONNX model is read and written by the package onnx, which is not installed. "
            "Install it with: pip install 'anytpu[onnx]'"
        ) from error
    return onnx


def held_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which a model holds values of a dtype of the host: float32 for those of 16 bits."""
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


class OnnxGraph:
    """A builder of an ONNX graph.

    Attributes:
        nodes: the nodes so far, in order.
        constants: the constants so far, as ONNX tensors.
    """

    def __init__(self):
        self._onnx = load_onnx()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._names = Names()
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def name(self, wanted: str) -> str:
        """Reserve and return an unused name: `wanted`, or `wanted` with a number."""
        return self._names.unused(wanted)

    def constant(self, value: np.ndarray | np.generic) -> str:
        """Return the name of a constant; add it if no equal constant exists."""
        array = np.asarray(value, order="C")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            name = self._known[key] = self.name("constant")
            self.constants.append(self._onnx.numpy_helper.from_array(array, name))
        return self._known[key]

    def add(self, kind: str, *operands: Operand, name: str | None = None, **attributes: Any) -> str:
        """Add a node with one result.

        Args:
            kind: name of the operator ("QLinearConv").
            operands: names of values, and constants as arrays.
            name: name of the result; None: a unique name made from `kind`.
            attributes: attributes of the operator; those that are None are omitted.

        Returns:
            The name of the result.
        """
        inputs = [operand if isinstance(operand, str) else self.constant(operand) for operand in operands]
        output = self.name(kind) if name is None else name
        present = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [output], name=output, **present))
        return output

    def cast(self, value: str, dtype: Any, have: Any = None) -> str:
        """Convert a value to a NumPy dtype, unless it already has that dtype, given as `have`."""
        if have is not None and np.dtype(have) == np.dtype(dtype):
            return value
        return self.add("Cast", value, to=self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def rounded(self, value: str, dtype: np.dtype) -> str:
        """Round a float32 value to a dtype of 16 bits, and keep it as float32; another dtype changes nothing."""
        return value if held_dtype(dtype) == dtype else self.cast(self.cast(value, dtype), np.float32)

    def reshape(self, value: str, shape: tuple[int, ...]) -> str:
        """Reshape each example of a value; the first axis, the batch, is kept."""
        return self.add("Reshape", value, np.array([0, *shape], np.int64))

    def transpose(self, value: str, order: Sequence[int]) -> str:
        """Transpose a value."""
        if list(order) == list(range(len(order))):
            return value
        return self.add("Transpose", value, perm=list(order))
