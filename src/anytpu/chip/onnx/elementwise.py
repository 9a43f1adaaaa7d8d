"""Elementwise host operations as operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.operations import Operation
from anytpu.chip.onnx.batched_value import BatchedValue, UntranslatableError
from anytpu.chip.onnx.graph import OnnxGraph, Operand, held_dtype

_DIRECT = {
    "abs": "Abs",
    "add": "Add",
    "ceil": "Ceil",
    "chlo.acos": "Acos",
    "chlo.acosh": "Acosh",
    "chlo.asin": "Asin",
    "chlo.asinh": "Asinh",
    "chlo.atan": "Atan",
    "chlo.atanh": "Atanh",
    "chlo.cosh": "Cosh",
    "chlo.erf": "Erf",
    "chlo.is_inf": "IsInf",
    "chlo.sinh": "Sinh",
    "chlo.tan": "Tan",
    "cosine": "Cos",
    "divide": "Div",
    "exponential": "Exp",
    "floor": "Floor",
    "log": "Log",
    "logistic": "Sigmoid",
    "maximum": "Max",
    "minimum": "Min",
    "multiply": "Mul",
    "negate": "Neg",
    "power": "Pow",
    "round_nearest_even": "Round",
    "select": "Where",
    "sign": "Sign",
    "sine": "Sin",
    "sqrt": "Sqrt",
    "subtract": "Sub",
    "tan": "Tan",
    "tanh": "Tanh",
}
"""Operations with an equivalent ONNX operator."""

_LOGICAL = {"and": ("And", "BitwiseAnd"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor")}
_COMPARISONS = {"EQ": "Equal", "LT": "Less", "LE": "LessOrEqual", "GT": "Greater", "GE": "GreaterOrEqual"}

_COMPOSED: dict[str, Callable[..., str]] = {
    "chlo.erfc": lambda graph, x: graph.add("Sub", np.float32(1), graph.add("Erf", x)),
    "chlo.square": lambda graph, x: graph.add("Mul", x, x),
    "clamp": lambda graph, low, x, high: graph.add("Min", graph.add("Max", x, low), high),
    "exponential_minus_one": lambda graph, x: graph.add("Sub", graph.add("Exp", x), np.float32(1)),
    "is_finite": lambda graph, x: graph.add("Not", graph.add("Or", graph.add("IsNaN", x), graph.add("IsInf", x))),
    "log_plus_one": lambda graph, x: graph.add("Log", graph.add("Add", x, np.float32(1))),
    "remainder": lambda graph, x, y: graph.add("Mod", x, y, fmod=1),
    "rsqrt": lambda graph, x: graph.add("Reciprocal", graph.add("Sqrt", x)),
}
"""Operations composed of several ONNX operators."""


def write_elements(
    graph: OnnxGraph, operation: Operation, operands: Sequence[BatchedValue | np.ndarray], layout: BatchLayout
) -> str | None:
    """Write an elementwise operation.

    Args:
        graph: the graph to add it to.
        operation: the operation.
        operands: its operands; arrays are constants.
        layout: position of the batch in its result.

    Returns:
        The name of its value; None if it is not elementwise.
    """
    name = operation.name
    values = [
        operand.value if isinstance(operand, BatchedValue) else _of_one_example(operand, operation, layout)
        for operand in operands
    ]
    if name in _DIRECT:
        return graph.add(_DIRECT[name], *values)
    if name in _COMPOSED:
        return _COMPOSED[name](graph, *values)
    if name in _LOGICAL:
        return graph.add(_LOGICAL[name][operation.dtype != bool], *values)
    if name == "not":
        return graph.add("Not" if operation.dtype == bool else "BitwiseNot", *values)
    if name == "compare":
        return _compared(graph, operation.attributes["comparison_direction"], values)
    if name == "convert":
        return graph.cast(str(values[0]), held_dtype(operation.dtype))
    return None


def _compared(graph: OnnxGraph, direction: str, values: Sequence[Operand]) -> str:
    if direction == "NE":
        return graph.add("Not", graph.add("Equal", *values))
    return graph.add(_COMPARISONS[direction], *values)


def _of_one_example(array: np.ndarray, operation: Operation, layout: BatchLayout) -> np.ndarray:
    """Return a constant that broadcasts along the batch axis of the result, so that it fits any batch size."""
    if array.shape != operation.shape or not array.shape:
        return array
    first = np.take(array, [0], layout.axis)
    if layout.is_merged and not (array == first).all():
        raise UntranslatableError("with a constant along the axis that the batch shares with others")
    return first
