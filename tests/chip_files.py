"""Quantized ONNX files: small networks for the digits, trained with JAX and quantized by onnxruntime."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime import quantization

OPSET = 21

(X_TRAIN, Y_TRAIN), (X_TEST, Y_TEST) = tpu.pipeline.digits()
PICTURES = np.ascontiguousarray(X_TRAIN.transpose(0, 3, 1, 2)), np.ascontiguousarray(X_TEST.transpose(0, 3, 1, 2))
"""The digits with channels first, as ONNX has pictures."""


class Calibration(quantization.CalibrationDataReader):
    """Examples for onnxruntime's calibration."""

    def __init__(self, feeds: Sequence[dict[str, Any]]):
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def write_float(
    path: Path,
    nodes: Sequence[Any],
    constants: dict[str, Any],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    opset: int = OPSET,
) -> Path:
    """Write an ONNX file; inputs and outputs are shapes, float32, or pairs of a shape and a dtype."""

    def declared(name: str, shape: Any) -> Any:
        shape, dtype = shape if shape and isinstance(shape[0], tuple) else (shape, "float32")
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["batch", *shape])

    graph = helper.make_graph(
        nodes,
        "digits",
        [declared(*entry) for entry in inputs.items()],
        [declared(*entry) for entry in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opsets), str(path))
    return path


def _mlp(weights: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x.reshape(len(x), -1) @ weights["w1"] + weights["b1"])
    return hidden @ weights["w2"] + weights["b2"]


def _cnn(weights: Any, x: Any) -> Any:
    for number, stride in ((1, 1), (2, 2)):
        x = jax.lax.conv_general_dilated(x, weights[f"k{number}"], (stride, stride), "SAME")
        x = jax.nn.relu(x + weights[f"c{number}"][:, None, None])
        if number == 1:
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return x.reshape(len(x), -1) @ weights["w"] + weights["b"]


_SHAPES = {
    "mlp": {"w1": (64, 32), "b1": (32,), "w2": (32, 10), "b2": (10,)},
    "cnn": {"k1": (8, 1, 3, 3), "c1": (8,), "k2": (12, 8, 3, 3), "c2": (12,), "w": (48, 10), "b": (10,)},
}


@functools.cache
def trained(name: str) -> dict[str, Any]:
    """Return the weights of "mlp" or "cnn" after 150 steps."""
    function, random = {"mlp": _mlp, "cnn": _cnn}[name], np.random.default_rng(1)
    weights = {
        key: (random.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:] if len(shape) > 2 else shape[:1]))).astype("f4")
        if len(shape) > 1
        else np.zeros(shape, np.float32)
        for key, shape in _SHAPES[name].items()
    }

    def loss(weights: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(function(weights, PICTURES[0])), Y_TRAIN[:, None], 1).mean()

    @jax.jit
    def step(weights: Any, momentum: Any) -> Any:
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, jax.grad(loss)(weights))
        return jax.tree.map(lambda w, m: w - 0.05 * m, weights, momentum), momentum

    momentum = jax.tree.map(jnp.zeros_like, weights)
    for _ in range(150):
        weights, momentum = step(weights, momentum)
    return {key: np.asarray(value) for key, value in weights.items()}


def float_file(name: str, path: Path) -> Path:
    """Write the trained network in floats."""
    node, weights = helper.make_node, trained(name)
    if name == "mlp":
        nodes = [
            node("Flatten", ["x"], ["flat"], "flat"),
            node("Gemm", ["flat", "w1", "b1"], ["sum1"], "hidden"),
            node("Relu", ["sum1"], ["hidden"], "relu"),
            node("Gemm", ["hidden", "w2", "b2"], ["scores"], "scores"),
        ]
    else:
        nodes = [
            node("Conv", ["x", "k1", "c1"], ["conv1"], "conv1", pads=[1, 1, 1, 1]),
            node("Relu", ["conv1"], ["relu1"], "relu1"),
            node("MaxPool", ["relu1"], ["pool"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", ["pool", "k2", "c2"], ["conv2"], "conv2", auto_pad="SAME_UPPER", strides=[2, 2]),
            node("Relu", ["conv2"], ["relu2"], "relu2"),
            node("Flatten", ["relu2"], ["flat"], "flat"),
            node("Gemm", ["flat", "w", "b"], ["scores"], "scores"),
        ]
    return write_float(path, nodes, weights, {"x": (1, 8, 8)}, {"scores": (10,)})


def quantized_file(source: Path, path: Path, qdq: bool, x: np.ndarray = PICTURES[0][:128], **options: Any) -> Path:
    """Quantize an ONNX file by onnxruntime, in one of its two formats."""
    format_of = quantization.QuantFormat
    logging.disable(logging.WARNING)  # it advises to prepare the model, which these files need not
    try:
        quantization.quantize_static(
            str(source),
            str(path),
            Calibration([{"x": x}]),
            quant_format=format_of.QDQ if qdq else format_of.QOperator,
            **options,
        )
    finally:
        logging.disable(logging.NOTSET)
    return path


def with_integers(path: Path, seen: Path) -> list[str]:
    """Write a quantized file with the integers of each activation as outputs too; return their names."""
    model = onnx.load(str(path))
    made = [
        (node.output[0], model)
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" or node.op_type.startswith("QLinear") or node.op_type == "QGemm"
    ]
    present = {output.name for output in model.graph.output}
    names = [name for name, _ in made if name not in present]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    onnx.save(model, str(seen))
    return names
