"""Operators of a quantized ONNX file that the host computes, as JAX functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.chip.given.onnx_node import FLOAT, OnnxNode, Operands
from anytpu.chip.given.values import HeldTensor, Pending, Scaled, Value


def _normalized(given: Mapping[str, Any]) -> Callable[..., Any]:
    def function(x: Any, scale: Any, bias: Any = 0.0) -> Any:
        axes = tuple(range(given.get("axis", -1) % x.ndim, x.ndim))
        mean = x.mean(axes, keepdims=True)
        variance = jnp.square(x - mean).mean(axes, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + given.get("epsilon", 1e-5)) * scale + bias

    return function


def _summed(given: Mapping[str, Any], x: Any) -> tuple[int, ...]:
    """Return the axes of a softmax; before version 13, all from its axis on."""
    if given["opset"] >= 13:
        return (given.get("axis", -1),)
    return tuple(range(given.get("axis", 1) % x.ndim, x.ndim))


_HOST: dict[str, tuple[str, str, Callable[[Mapping[str, Any]], Callable[..., Any]]]] = {
    "Softmax": (
        "softmax",
        "it divides by a sum over channels",
        lambda given: lambda x: jax.nn.softmax(x, _summed(given, x)),
    ),
    "LogSoftmax": (
        "log softmax",
        "it needs a sum over channels",
        lambda given: lambda x: jax.nn.log_softmax(x, _summed(given, x)),
    ),
    "MatMul": (
        "product of activations",
        "it multiplies two activations, and the chip multiplies activations with weights",
        lambda _: jnp.matmul,
    ),
    "Div": ("divide", "it divides one tensor by another", lambda _: jnp.divide),
    "LayerNormalization": ("layer normalization", "it needs the mean and the variance over channels", _normalized),
    "ReduceMean": (
        "mean",
        "it reduces over channels",
        lambda given: (
            lambda x, axes=None: x.mean(tuple(given.get("axes", axes)), keepdims=given.get("keepdims", 1) == 1)
        ),
    ),
}
"""Operators that the host computes: kind, reason, and the JAX function by the attributes of the node."""


_EXAMPLES = 7919


def host_step(node: OnnxNode, operands: Operands) -> Value:
    """Write an operator as a step of the host."""
    kind, why, maker = _HOST[node.kind]
    given = node.attributes
    if "Softmax" in node.kind:
        given.setdefault("opset", node.opset)
    function, held = maker(given), [node.graph.held(x) for x in operands if isinstance(x, HeldTensor | Pending)]

    if not held:
        raise node.refused("takes constants only", FLOAT)

    def computed(*arrays: Any) -> Any:
        left = list(arrays)
        return function(
            *(
                left.pop(0) if isinstance(x, HeldTensor | Pending) else x.reals if isinstance(x, Scaled) else x
                for x in operands
            )
        )

    if len({len(value.dims) for value in held}) > 1:
        raise node.refused("combines examples of a batch, because its operands have other numbers of axes", FLOAT)
    # No constant has an axis of this size, which the batch could meet.
    specs = [jax.ShapeDtypeStruct((_EXAMPLES, *value.dims), np.float32) for value in held]
    shape = jax.eval_shape(computed, *specs).shape
    if shape[:1] != (_EXAMPLES,):
        raise node.refused("works along the batch, and the chip computes each example by itself", FLOAT)
    return node.graph.host(kind, why, computed, held, tuple(shape[1:]))
