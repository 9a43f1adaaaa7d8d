"""Operations of the host that work number by number, as operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from anytpu.chip.network.lay import Lay
from anytpu.chip.network.operations import Operation
from anytpu.chip.onnx.graph import Graph, Operand
from anytpu.chip.onnx.placed import Placed, Untranslatable

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
"""What ONNX has an operator of its own for."""

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
"""What takes several of its operators."""


def write_elements(graph: Graph, operation: Operation, operands: Sequence[Placed | np.ndarray], lay: Lay) -> str | None:
    """Write an operation number by number.

    Args:
        graph: where.
        operation: the operation.
        operands: its operands.
        lay: where the examples lie in its result.

    Returns:
        Its value; None if it is of another kind.
    """
    name = operation.name
    values = [one.value if isinstance(one, Placed) else _of_one_example(one, operation, lay) for one in operands]
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
        return graph.cast(str(values[0]), operation.dtype)
    return None


def _compared(graph: Graph, direction: str, values: Sequence[Operand]) -> str:
    if direction == "NE":
        return graph.add("Not", graph.add("Equal", *values))
    return graph.add(_COMPARISONS[direction], *values)


def _of_one_example(array: np.ndarray, operation: Operation, lay: Lay) -> np.ndarray:
    """Return a constant for all examples as one that goes with any number of them."""
    if array.shape != operation.shape or not array.shape:
        return array
    first = np.take(array, [0], lay.axis)
    if lay.is_merged and not (array == first).all():
        raise Untranslatable("with a constant along the axis that the batch shares with others")
    return first
