"""Convolutions and dense layers: QLinearConv and QLinearMatMul for 8 bits, ConvInteger for 16 bits.

Idea: a 16-bit integer is 256 * high + low - 32768, with two bytes of 0 to 255, and so is its zero point. Its product
with weights is 256 times the product of the high bytes plus the product of the low bytes. Each of the two products is a
ConvInteger with its own zero point.

Rule: sums are int32 and wrap; `OnnxWriter.round` converts them to integers of the output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anytpu.chip.graph.arithmetic import convolution_multipliers
from anytpu.chip.graph.nodes import Convolution, Quantization
from anytpu.chip.onnx.writer import OnnxWriter


def write_convolution(writer: OnnxWriter, node: Convolution) -> str:
    """Write a convolution or a dense layer; return the name of its value."""
    source, target = writer.quantization(node.inputs[0]), writer.quantization(node.output)
    if source.bits == target.bits == 8:
        if is_plain_product(writer, node):
            return _product(writer, node)
        return writer.clip(_linear(writer, node), target, *node.bounds)
    value, pads = writer.crop(node)
    sums = convolve(writer, value, source, _oihw(node.weights), **_geometry(node, pads))
    biased = writer.graph.add("Add", sums, node.bias.astype(np.int32)[:, None, None])
    multipliers = convolution_multipliers(source, node.weight_scales, target)[:, None, None]
    scaled = writer.graph.add("Mul", writer.graph.cast(biased, np.float32), multipliers)
    return writer.round(scaled, target, *node.bounds)


def is_plain_product(writer: OnnxWriter, node: Convolution) -> bool:
    """Return whether a node is a vector-matrix product without bias, which QLinearMatMul computes."""
    height, width, _ = writer.shape(node.inputs[0])
    plain = height == width == 1 and node.weights.shape[:2] == (1, 1) and node.padding == ((0, 0), (0, 0))
    return plain and node.groups == 1 and not node.bias.any()


def convolve(writer: OnnxWriter, value: str, source: Quantization, weights: np.ndarray, **geometry: Any) -> str:
    """Write the int32 sums of a convolution over integers of 8 or 16 bits.

    Args:
        writer: the model being written.
        value: name of the input's integers, `(batch, channels, height, width)`.
        source: quantization of the input.
        weights: int8 `(output channels, input channels / groups, height, width)`.
        geometry: attributes of ConvInteger.

    Returns:
        The name of the sums, int32 `(batch, output channels, height, width)`.
    """
    graph = writer.graph
    held, weight_zero = writer.weights(weights)
    if source.bits == 8:
        zero = writer.integers(source.zero_point, source)
        return graph.add("ConvInteger", value, held, zero, weight_zero, **geometry)
    moved = graph.add("Add", graph.cast(value, np.int32), np.int32(32768))
    high = graph.add("Div", moved, np.int32(256))
    low = graph.add("Sub", moved, graph.add("Mul", high, np.int32(256)))
    sums = [
        graph.add("ConvInteger", graph.cast(part, np.uint8), held, np.uint8(zero), weight_zero, **geometry)
        for part, zero in zip((high, low), divmod(source.zero_point + 32768, 256), strict=True)
    ]
    return graph.add("Add", graph.add("Mul", sums[0], np.int32(256)), sums[1])


def _oihw(weights: np.ndarray) -> np.ndarray:
    """Return weights in ONNX's order: output channels, input channels of a group, height, width."""
    return np.ascontiguousarray(weights.transpose(3, 2, 0, 1))


def _geometry(node: Convolution, pads: list[int]) -> dict[str, Any]:
    return {
        "kernel_shape": list(node.weights.shape[:2]),
        "strides": list(node.strides),
        "dilations": list(node.dilation),
        "pads": pads,
        "group": node.groups,
    }


def _linear(writer: OnnxWriter, node: Convolution) -> str:
    value, pads = writer.crop(node)
    weights, weight_zero = writer.weights(_oihw(node.weights))
    return writer.graph.add(
        "QLinearConv",
        value,
        *writer.parameters(node.inputs[0]),
        weights,
        node.weight_scales.astype(np.float32),
        weight_zero,
        *writer.parameters(node.output),
        node.bias.astype(np.int32),
        **_geometry(node, pads),
    )


def _product(writer: OnnxWriter, node: Convolution) -> str:
    target, channels = writer.quantization(node.output), writer.shape(node.output)[2]
    flat = writer.graph.reshape(writer.values[node.inputs[0]], (writer.shape(node.inputs[0])[2],))
    weights, weight_zero = writer.weights(np.ascontiguousarray(node.weights[0, 0]))
    product = writer.graph.add(
        "QLinearMatMul",
        flat,
        *writer.parameters(node.inputs[0]),
        weights,
        node.weight_scales.astype(np.float32),
        np.full(channels, weight_zero, weights.dtype),
        *writer.parameters(node.output),
    )
    return writer.clip(writer.graph.reshape(product, (channels, 1, 1)), target, *node.bounds)
