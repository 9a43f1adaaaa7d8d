"""The operators of a quantized ONNX file, as nodes of an `IntegerGraph`.

Idea: an operator of integers (`QLinearConv`) is the operator of floats (`Conv`) between its scales. So there is one
function for both, which `SCALED_OPERATORS` calls with dequantized operands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from anytpu.chip.given.onnx_elementwise import FUNCTIONS, binary, clip, function, relu
from anytpu.chip.given.onnx_host import host_step
from anytpu.chip.given.onnx_moves import cast, concat, dropout, pad, reshape, same, slice_of, split, transpose
from anytpu.chip.given.onnx_node import OnnxNode, Operands, dequantized, quantized
from anytpu.chip.given.onnx_windows import conv, gemm, matmul, pool, reduce_mean
from anytpu.chip.given.values import HeldTensor, Pending, Value

OPERATORS: dict[str, Callable[[OnnxNode, Operands], Value | list[Value]]] = {
    "Add": binary("add"),
    "AveragePool": pool("average"),
    "Cast": cast,
    "Clip": clip,
    "Concat": concat,
    "Conv": conv,
    "Div": binary("divide"),
    "Dropout": dropout,
    "Flatten": reshape,
    "Gemm": gemm,
    "GlobalAveragePool": pool("average", whole=True),
    "GlobalMaxPool": pool("max", whole=True),
    "Identity": same,
    "MatMul": matmul,
    "MaxPool": pool("max"),
    "Mul": binary("multiply"),
    "Pad": pad,
    "ReduceMean": reduce_mean,
    "Relu": relu,
    "Reshape": reshape,
    "Slice": slice_of,
    "Split": split,
    "Squeeze": reshape,
    "Sub": binary("subtract"),
    "Transpose": transpose,
    "Unsqueeze": reshape,
    **dict.fromkeys(FUNCTIONS, function),
    **dict.fromkeys(("LayerNormalization", "LogSoftmax", "Softmax"), host_step),
}
"""Operators of floats, and those that only move numbers."""


def _between(kind: str, operands: int, more: str = "") -> Callable[[OnnxNode, Operands], Value]:
    """Return an operator between scales: so many operands with scale and zero point, the result's, and others."""

    def write(node: OnnxNode, given: Operands) -> Value:
        taken = 3 * operands
        axis = 0 if kind == "Conv" or node.attributes.get("transB") else 1
        parts = [dequantized(node, given[3 * n : 3 * n + 3], axis if n else None) for n in range(operands)]
        rest, target = list(given[taken:]), slice(0, 2)
        if more == "bias after":  # QLinearConv: the result's scale, then the bias
            parts += [rest[2]] if len(rest) > 2 and rest[2] is not None else []
        elif more == "bias before":  # QGemm
            parts += rest[:1] if rest and rest[0] is not None else []
            target = slice(1, 3)
        result = OPERATORS[kind](dataclasses.replace(node, kind=kind), parts)
        assert isinstance(result, HeldTensor | Pending)
        if rest[target] == [] or rest[target][0] is None:
            return result
        scale, zero_point = (*rest[target], None)[:2]
        return quantized(node, result, scale, zero_point)

    return write


def _joined(node: OnnxNode, given: Operands) -> Value:
    parts = [dequantized(node, given[start : start + 3]) for start in range(2, len(given), 3)]
    result = concat(node, parts)
    assert isinstance(result, Pending)
    return quantized(node, result, given[0], given[1])


SCALED_OPERATORS: dict[str, Callable[[OnnxNode, Operands], Value]] = {
    "QGemm": _between("Gemm", 2, "bias before"),
    "QLinearAdd": _between("Add", 2),
    "QLinearAveragePool": _between("AveragePool", 1),
    "QLinearConcat": _joined,
    "QLinearConv": _between("Conv", 2, "bias after"),
    "QLinearGlobalAveragePool": _between("GlobalAveragePool", 1),
    "QLinearLeakyRelu": _between("LeakyRelu", 1),
    "QLinearMatMul": _between("MatMul", 2),
    "QLinearMul": _between("Mul", 2),
    "QLinearSigmoid": _between("Sigmoid", 1),
    "QLinearSoftmax": _between("Softmax", 1),
}
"""Operators of integers: an operator of floats between its scales."""
