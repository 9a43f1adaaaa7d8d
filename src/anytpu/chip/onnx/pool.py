"""Pools: max pools as MaxPool, average pools as depthwise convolutions.

Idea: an average pool is a depthwise QLinearConv with weights 1 and weight scale 1 / (number of window positions). If
windows at the border have fewer positions, ConvInteger computes the sums. Each position of the result then has its own
multiplier.
"""

from __future__ import annotations

import numpy as np

from anytpu.chip.onnx.convolution import convolve
from anytpu.chip.onnx.writing import Writing
from anytpu.chip.quantized.multipliers import average_multipliers, pool_counts, window_counts
from anytpu.chip.quantized.nodes import QPool


def write_pool(writing: Writing, node: QPool) -> str:
    """Write a pool; return the name of its value."""
    return _maximum(writing, node) if node.kind == "max" else _average(writing, node)


def _maximum(writing: Writing, node: QPool) -> str:
    graph, quantization = writing.graph, writing.quantization(node.inputs[0])
    value, pads = _cropped(writing, node)
    # MaxPool has no int16; float32 represents each int16 exactly.
    dtype = writing.dtype(quantization) if quantization.bits == 8 else np.dtype(np.float32)
    value = graph.cast(value, dtype, writing.dtype(quantization))
    if not all(pad < node.window[number % 2] for number, pad in enumerate(pads)):  # MaxPool's limit.
        value, pads = _padded(writing, node, value, pads, dtype), [0] * 4
    result = graph.add("MaxPool", value, kernel_shape=list(node.window), strides=list(node.strides), pads=pads)
    shapes = writing.shape(node.inputs[0]), writing.shape(node.output)
    is_empty = window_counts(node.window, node.strides, node.padding, *shapes) == 0
    if is_empty.any():
        least = np.where(is_empty, quantization.zero_point, quantization.low)
        result = graph.add("Max", result, writing.integers(least, quantization).astype(dtype))
    return graph.cast(result, writing.dtype(quantization), dtype)


def _padded(writing: Writing, node: QPool, value: str, pads: list[int], dtype: np.dtype) -> str:
    """Pad a value with the minimum integer by Pad and Min; onnxruntime would fuse a single Pad into MaxPool."""
    quantization, shape = writing.quantization(node.inputs[0]), writing.shape(node.inputs[0])
    sizes = [size + min(0, first) + min(0, last) for size, (first, last) in zip(shape[:2], node.padding, strict=True)]
    around = [(pads[0], pads[2]), (pads[1], pads[3])]
    most = np.pad(np.full(sizes, quantization.high), around, constant_values=quantization.low)
    wider = writing.graph.add("Pad", value, np.array([0, 0, *pads[:2], 0, 0, *pads[2:]], np.int64))
    return writing.graph.add("Min", wider, writing.integers(most, quantization).astype(dtype))


def _average(writing: Writing, node: QPool) -> str:
    source, target = writing.quantization(node.inputs[0]), writing.quantization(node.output)
    counts = pool_counts(node, writing.shape(node.inputs[0]), writing.shape(node.output))
    value, pads = _cropped(writing, node)
    channels = writing.shape(node.inputs[0])[2]
    unit_weights = np.ones((channels, 1, *node.window), np.int8)
    geometry = {"kernel_shape": list(node.window), "strides": list(node.strides), "pads": pads, "group": channels}
    if source.bits == target.bits == 8 and (counts == counts[0, 0]).all() and counts[0, 0] > 0:
        weights, weight_zero = writing.weights(unit_weights)
        share = np.float32(1) / np.float32(counts[0, 0])
        parameters = *writing.parameters(node.inputs[0]), weights, share, weight_zero, *writing.parameters(node.output)
        return writing.graph.add("QLinearConv", value, *parameters, **geometry)
    sums = writing.graph.cast(convolve(writing, value, source, unit_weights, **geometry), np.float32)
    scaled = writing.graph.add("Mul", sums, average_multipliers(source, counts, target))
    return writing.round(scaled, target, target.low, target.high)


def _cropped(writing: Writing, node: QPool) -> tuple[str, list[int]]:
    return writing.crop(writing.values[node.inputs[0]], writing.shape(node.inputs[0]), node.padding)
