"""Elementwise operators of a quantized ONNX file: functions of one number, and operations of two tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from anytpu.chip.given.combining import combined, is_number
from anytpu.chip.given.onnx_host import host_step
from anytpu.chip.given.onnx_node import FLOAT, QUANTIZE, OnnxNode, Operands, activation, number, quantization_of
from anytpu.chip.given.values import Scaled, Value
from anytpu.chip.graph.nodes import Quantization


def binary(kind: str) -> Callable[[OnnxNode, Operands], Value]:
    """Return the function that writes an operation of two values: a table if one is a number."""

    def write(node: OnnxNode, operands: Operands) -> Value:
        first, second = operands[:2]

        def constant_of(value: Value | None) -> tuple[np.ndarray, Quantization]:
            if not isinstance(value, Scaled):
                raise node.refused("takes constants without scales", QUANTIZE)
            own = quantization_of(node, value.scale, value.zero_point.astype(value.integers.dtype))
            if value.integers.dtype.itemsize > 1:
                raise node.refused(f"takes constants of {value.integers.dtype.name}", QUANTIZE)
            return value.integers.astype(np.int64) - (128 if value.integers.dtype.kind == "u" else 0), own

        refused = functools.partial(node.refused, next_step=FLOAT)
        if kind == "divide" and not is_number(first) and not is_number(second):
            return host_step(node, operands)
        return combined(node.graph, kind, first, second, constant_of, refused)

    return write


def clip(node: OnnxNode, operands: Operands) -> Value:
    """Write a clip."""
    low, high = number(node, operands, 1, "min"), number(node, operands, 2, "max")
    return node.graph.clipped(activation(node, operands[0]), low, high)


def relu(node: OnnxNode, operands: Operands) -> Value:
    """Write a ReLU, a clip at 0."""
    return node.graph.clipped(activation(node, operands[0]), 0.0, None)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, Callable[[Mapping[str, Any]], Callable[[np.ndarray], np.ndarray]]] = {
    "Abs": lambda _: np.abs,
    "Elu": lambda given: lambda x: np.where(x < 0, given.get("alpha", 1.0) * np.expm1(np.minimum(x, 0)), x),
    "Erf": lambda _: lambda x: np.asarray(jax.lax.erf(x)),
    "Exp": lambda _: np.exp,
    "Gelu": lambda given: (
        lambda x: np.asarray(jax.nn.gelu(x, approximate=given.get("approximate", b"none") == b"tanh"))
    ),
    "HardSigmoid": lambda given: lambda x: np.clip(given.get("alpha", 0.2) * x + given.get("beta", 0.5), 0, 1),
    "HardSwish": lambda _: lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "LeakyRelu": lambda given: lambda x: np.where(x < 0, np.float32(given.get("alpha", 0.01)) * x, x),
    "Neg": lambda _: np.negative,
    "Selu": lambda given: (
        lambda x: (
            np.float32(given.get("gamma", 1.05070102214813232421875))
            * np.where(x > 0, x, np.float32(given.get("alpha", 1.67326319217681884765625)) * np.expm1(np.minimum(x, 0)))
        )
    ),
    "Sigmoid": lambda _: _sigmoid,
    "Softplus": lambda _: lambda x: np.logaddexp(x, np.float32(0)),
    "Softsign": lambda _: lambda x: x / (1 + np.abs(x)),
    "Sqrt": lambda _: np.sqrt,
    "Tanh": lambda _: np.tanh,
}
"""Functions of one number, by the attributes of the node."""


def function(node: OnnxNode, operands: Operands) -> Value:
    """Write a function of one number."""
    return node.graph.function(activation(node, operands[0]), node.kind.lower(), FUNCTIONS[node.kind](node.attributes))
