"""Pools: max pools as MaxPool, average pools as depthwise convolutions.

Idea: an average pool is a depthwise QLinearConv with weights 1 and weight scale 1 / (number of window positions). If
windows at the border have fewer positions, ConvInteger computes the sums. Each position of the result then has its own
multiplier.
"""

from __future__ import annotations

import numpy as np

from anytpu.chip.graph.arithmetic import average_multipliers, pool_counts, window_counts
from anytpu.chip.graph.nodes import Pool
from anytpu.chip.onnx.convolution import convolve
from anytpu.chip.onnx.writer import OnnxWriter


def write_pool(writer: OnnxWriter, node: Pool) -> str:
    """Write a pool; return the name of its value."""
    return _maximum(writer, node) if node.kind == "max" else _average(writer, node)


def _maximum(writer: OnnxWriter, node: Pool) -> str:
    graph, quantization = writer.graph, writer.quantization(node.inputs[0])
    value, pads = writer.crop(node)
    # MaxPool has no int16; float32 represents each int16 exactly.
    dtype = writer.dtype(quantization) if quantization.bits == 8 else np.dtype(np.float32)
    value = graph.cast(value, dtype, writer.dtype(quantization))
    if not all(pad < node.window[index % 2] for index, pad in enumerate(pads)):  # MaxPool's limit.
        value, pads = _padded(writer, node, value, pads, dtype), [0] * 4
    result = graph.add("MaxPool", value, kernel_shape=list(node.window), strides=list(node.strides), pads=pads)
    shapes = writer.shape(node.inputs[0]), writer.shape(node.output)
    is_empty = window_counts(node.window, node.strides, node.padding, *shapes) == 0
    if is_empty.any():
        minimum = np.where(is_empty, quantization.zero_point, quantization.low)
        result = graph.add("Max", result, writer.integers(minimum, quantization).astype(dtype))
    return graph.cast(result, writer.dtype(quantization), dtype)


def _padded(writer: OnnxWriter, node: Pool, value: str, pads: list[int], dtype: np.dtype) -> str:
    """Pad a value with the minimum integer by Pad and Min; onnxruntime would fuse a single Pad into MaxPool."""
    quantization, shape = writer.quantization(node.inputs[0]), writer.shape(node.inputs[0])
    sizes = [size + min(0, first) + min(0, last) for size, (first, last) in zip(shape[:2], node.padding, strict=True)]
    around = [(pads[0], pads[2]), (pads[1], pads[3])]
    maximum = np.pad(np.full(sizes, quantization.high), around, constant_values=quantization.low)
    wider = writer.graph.add("Pad", value, np.array([0, 0, *pads[:2], 0, 0, *pads[2:]], np.int64))
    return writer.graph.add("Min", wider, writer.integers(maximum, quantization).astype(dtype))


def _average(writer: OnnxWriter, node: Pool) -> str:
    source, target = writer.quantization(node.inputs[0]), writer.quantization(node.output)
    counts = pool_counts(node, writer.shape(node.inputs[0]), writer.shape(node.output))
    value, pads = writer.crop(node)
    channels = writer.shape(node.inputs[0])[2]
    unit_weights = np.ones((channels, 1, *node.window), np.int8)
    geometry = {"kernel_shape": list(node.window), "strides": list(node.strides), "pads": pads, "group": channels}
    if source.bits == target.bits == 8 and (counts == counts[0, 0]).all() and counts[0, 0] > 0:
        weights, weight_zero = writer.weights(unit_weights)
        share = np.float32(1) / np.float32(counts[0, 0])
        parameters = *writer.parameters(node.inputs[0]), weights, share, weight_zero, *writer.parameters(node.output)
        return writer.graph.add("QLinearConv", value, *parameters, **geometry)
    sums = writer.graph.cast(convolve(writer, value, source, unit_weights, **geometry), np.float32)
    scaled = writer.graph.add("Mul", sums, average_multipliers(source, counts, target))
    return writer.round(scaled, target, target.low, target.high)
