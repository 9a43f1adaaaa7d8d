"""A small quantized ONNX file in both formats, made without onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper, numpy_helper


def _node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), outputs.split()[0], **attributes)


def small_file(qdq: bool) -> Any:
    """Return a model: a picture through a convolution, a max pool, a dense layer and a softmax."""
    random = np.random.default_rng(0)
    constants = {
        "k": random.integers(-127, 128, (4, 2, 3, 3)).astype(np.int8),
        "ks": random.uniform(0.01, 0.02, 4).astype(np.float32),
        "kz": np.zeros(4, np.int8),
        "b": random.integers(-500, 500, 4).astype(np.int32),
        "bs": np.float32(0.1) * random.uniform(0.01, 0.02, 4).astype(np.float32),
        "bz": np.zeros(4, np.int32),
        "w": random.integers(0, 256, (16, 3)).astype(np.uint8),
        "ws": np.float32(0.02),
        "wz": np.uint8(120),
    }
    for name, zero in (("x", 100), ("h", 0), ("y", 128)):
        constants |= {f"{name}s": np.float32(0.1), f"{name}z": np.uint8(zero)}
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    if qdq:
        nodes = [
            _node("QuantizeLinear", "x xs xz", "xq"),
            _node("DequantizeLinear", "xq xs xz", "xd"),
            _node("DequantizeLinear", "k ks kz", "kd", axis=0),
            _node("DequantizeLinear", "b bs bz", "bd", axis=0),
            _node("Conv", "xd kd bd", "hf", pads=[1, 0, 1, 0]),
            _node("Relu", "hf", "hr"),
            _node("QuantizeLinear", "hr hs hz", "hq"),
            _node("DequantizeLinear", "hq hs hz", "hd"),
            _node("MaxPool", "hd", "m", **pool),
            _node("Flatten", "m", "f"),
            _node("DequantizeLinear", "w ws wz", "wd"),
            _node("MatMul", "f wd", "yf"),
        ]
    else:
        nodes = [
            _node("QuantizeLinear", "x xs xz", "xq"),
            _node("QLinearConv", "xq xs xz k ks kz hs hz b", "hq", pads=[1, 0, 1, 0]),
            _node("MaxPool", "hq", "m", **pool),
            _node("Flatten", "m", "f"),
            _node("QLinearMatMul", "f hs hz w ws wz ys yz", "yq"),
        ]
    nodes += [_node("QuantizeLinear", "yf ys yz", "yq")] if qdq else []
    nodes += [_node("DequantizeLinear", "yq ys yz", "yd"), _node("Softmax", "yd", "out")]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", 1, ["batch", 2, 4, 6])],
        [helper.make_tensor_value_info("out", 1, ["batch", 3])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
