"""Elementwise operators of a quantized ONNX file: functions of one number, and operations of two tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from anytpu.chip.given.onnx_host import host_step
from anytpu.chip.given.onnx_node import (
    FLOAT,
    QUANTIZE,
    OnnxNode,
    Operands,
    activation,
    in_order,
    number,
    quantization_of,
)
from anytpu.chip.given.values import HeldTensor, Pending, Scaled, Value


def binary(kind: str) -> Callable[[OnnxNode, Operands], Value]:
    """Return the function that writes an operation of two values: a table if one is a number."""
    ufunc = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}[kind]

    def write(node: OnnxNode, operands: Operands) -> Value:
        first, second = operands[:2]
        for value, other, turned in ((first, second, False), (second, first, True)):
            known = other.reals if isinstance(other, Scaled) else other
            if isinstance(value, HeldTensor | Pending) and isinstance(known, np.ndarray) and known.size == 1:
                if isinstance(value, HeldTensor | Pending) and known.ndim > len(value.dims) + 1:
                    raise node.refused(f"combines {list(value.dims)} with constants of {list(known.shape)}", FLOAT)
                constant = known.astype(np.float32).reshape(())
                apply = functools.partial(ufunc, constant) if turned else functools.partial(_swapped, ufunc, constant)
                return node.graph.function(value, kind, apply)
        if kind == "divide":
            return host_step(node, operands)
        return _of_tensors(node, kind, first, second)

    return write


def _swapped(ufunc: Callable[..., np.ndarray], second: np.ndarray, first: np.ndarray) -> np.ndarray:
    return ufunc(first, second)


def _of_tensors(node: OnnxNode, kind: str, first: Value | None, second: Value | None) -> Value:
    graph, turned = node.graph, not isinstance(first, HeldTensor | Pending)
    if turned and kind != "subtract":
        first, second = second, first
        turned = False
    if turned or not isinstance(first, HeldTensor | Pending):
        raise node.refused("subtracts a tensor from constants", FLOAT)
    held = in_order(graph, graph.held(first))
    if isinstance(second, HeldTensor | Pending):
        other = in_order(graph, graph.held(second))
        if math.prod(other.dims) > math.prod(held.dims) and kind != "subtract":
            held, other = other, held
        if held.channels_first != other.channels_first and len(other.dims) == len(held.dims):
            held, other = graph.picture(held), graph.picture(other)
        for operand in (held, other):
            graph.of(operand)  # both need a scale
        shape, tensor = graph.shapes[held.tensor], other.tensor
        alike = other.dims == held.dims and other.channels_first == held.channels_first
        if alike and graph.shapes[tensor] == shape:
            return graph.elementwise(kind, held, tensor)
        ranks = len(other.dims) == len(held.dims)
        if ranks and graph.shapes[tensor] == (1, 1, shape[2]) and _per_channel(other.dims, held):
            return graph.elementwise(kind, held, tensor)
        raise node.refused(
            f"combines {list(held.dims)} with {list(other.dims)}, and the chip repeats a number per channel only",
            FLOAT,
        )
    if not isinstance(second, Scaled):
        raise node.refused("takes constants without scales", QUANTIZE)
    own = quantization_of(node, second.scale, second.zero_point.astype(second.integers.dtype))
    integers = second.integers.astype(np.int64) - (128 if second.integers.dtype.kind == "u" else 0)
    if second.integers.dtype.itemsize > 1:
        raise node.refused(f"takes constants of {second.integers.dtype.name}", QUANTIZE)
    dims = integers.shape[1:] if integers.ndim == len(held.dims) + 1 and integers.shape[0] == 1 else integers.shape
    if _per_channel(dims, held):
        return graph.elementwise(kind, held, graph.constant(held, integers.reshape(1, 1, -1), own))
    if len(dims) > len(held.dims) or np.broadcast_shapes(dims, held.dims) != held.dims:
        raise node.refused(f"combines {list(held.dims)} with constants of {list(integers.shape)}", FLOAT)
    whole = np.broadcast_to(integers.reshape(dims), held.dims)
    ordered = np.moveaxis(whole, 0, -1) if held.channels_first else whole
    return graph.elementwise(kind, held, graph.constant(held, ordered.reshape(graph.shapes[held.tensor]), own))


def _per_channel(dims: tuple[int, ...], held: HeldTensor) -> bool:
    """Return whether a shape broadcasts as one number per channel."""
    padded = (*[1] * (len(held.dims) - len(dims)), *dims)
    channel = 0 if held.channels_first else len(held.dims) - 1
    return len(padded) == len(held.dims) and all(
        size == (held.dims[axis] if axis == channel else 1) for axis, size in enumerate(padded)
    )


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
