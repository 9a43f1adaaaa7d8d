"""Convolutions and dense layers: QLinearConv and QLinearMatMul for 8 bits, ConvInteger for 16 bits.

Idea: a 16-bit integer is 256 * high + low - 32768, with two bytes of 0 to 255, and so is its zero point. Its product
with weights is 256 times the product of the high bytes plus the product of the low bytes. Each of the two products is a
ConvInteger with its own zero point.

Rule: sums are int32 and wrap; `Writing.round` converts them to integers of the output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anytpu.chip.onnx.writing import Writing
from anytpu.chip.quantized.multipliers import convolution_multipliers
from anytpu.chip.quantized.nodes import QConvolution, Quantization


def write_convolution(writing: Writing, node: QConvolution) -> str:
    """Write a convolution or a dense layer; return the name of its value."""
    source, target = writing.quantization(node.inputs[0]), writing.quantization(node.output)
    if source.bits == target.bits == 8:
        if is_plain_product(writing, node):
            return _product(writing, node)
        return writing.clip(_linear(writing, node), target, node.low, node.high)
    value, pads = _cropped(writing, node)
    sums = convolve(writing, value, source, _oihw(node.weights), **_geometry(node, pads))
    biased = writing.graph.add("Add", sums, node.bias.astype(np.int32)[:, None, None])
    multipliers = convolution_multipliers(source, node.weight_scales, target)[:, None, None]
    scaled = writing.graph.add("Mul", writing.graph.cast(biased, np.float32), multipliers)
    return writing.round(scaled, target, node.low, node.high)


def is_plain_product(writing: Writing, node: QConvolution) -> bool:
    """Return whether a node is a vector-matrix product without bias, which QLinearMatMul computes."""
    height, width, _ = writing.shape(node.inputs[0])
    plain = height == width == 1 and node.weights.shape[:2] == (1, 1) and node.padding == ((0, 0), (0, 0))
    return plain and node.groups == 1 and not node.bias.any()


def convolve(writing: Writing, value: str, source: Quantization, weights: np.ndarray, **geometry: Any) -> str:
    """Write the int32 sums of a convolution over integers of 8 or 16 bits.

    Args:
        writing: the model being written.
        value: name of the input's integers, `(batch, channels, height, width)`.
        source: quantization of the input.
        weights: int8 `(output channels, input channels / groups, height, width)`.
        geometry: attributes of ConvInteger.

    Returns:
        The name of the sums, int32 `(batch, output channels, height, width)`.
    """
    graph = writing.graph
    held, weight_zero = writing.weights(weights)
    if source.bits == 8:
        zero = writing.integers(source.zero_point, source)
        return graph.add("ConvInteger", value, held, zero, weight_zero, **geometry)
    moved = graph.add("Add", graph.cast(value, np.int32), np.int32(32768))
    high = graph.add("Div", moved, np.int32(256))
    low = graph.add("Sub", moved, graph.add("Mul", high, np.int32(256)))
    sums = [
        graph.add("ConvInteger", graph.cast(part, np.uint8), held, np.uint8(zero), weight_zero, **geometry)
        for part, zero in zip((high, low), divmod(source.zero_point + 32768, 256), strict=True)
    ]
    return graph.add("Add", graph.add("Mul", sums[0], np.int32(256)), sums[1])


def _cropped(writing: Writing, node: QConvolution) -> tuple[str, list[int]]:
    return writing.crop(writing.values[node.inputs[0]], writing.shape(node.inputs[0]), node.padding)


def _oihw(weights: np.ndarray) -> np.ndarray:
    """Return weights in ONNX's order: output channels, input channels of a group, height, width."""
    return np.ascontiguousarray(weights.transpose(3, 2, 0, 1))


def _geometry(node: QConvolution, pads: list[int]) -> dict[str, Any]:
    return {
        "kernel_shape": list(node.weights.shape[:2]),
        "strides": list(node.strides),
        "dilations": list(node.dilation),
        "pads": pads,
        "group": node.groups,
    }


def _linear(writing: Writing, node: QConvolution) -> str:
    value, pads = _cropped(writing, node)
    weights, weight_zero = writing.weights(_oihw(node.weights))
    return writing.graph.add(
        "QLinearConv",
        value,
        *writing.parameters(node.inputs[0]),
        weights,
        node.weight_scales.astype(np.float32),
        weight_zero,
        *writing.parameters(node.output),
        node.bias.astype(np.int32),
        **_geometry(node, pads),
    )


def _product(writing: Writing, node: QConvolution) -> str:
    target, channels = writing.quantization(node.output), writing.shape(node.output)[2]
    flat = writing.graph.reshape(writing.values[node.inputs[0]], (writing.shape(node.inputs[0])[2],))
    weights, weight_zero = writing.weights(np.ascontiguousarray(node.weights[0, 0]))
    product = writing.graph.add(
        "QLinearMatMul",
        flat,
        *writing.parameters(node.inputs[0]),
        weights,
        node.weight_scales.astype(np.float32),
        np.full(channels, weight_zero, weights.dtype),
        *writing.parameters(node.output),
    )
    return writing.clip(writing.graph.reshape(product, (channels, 1, 1)), target, node.low, node.high)
