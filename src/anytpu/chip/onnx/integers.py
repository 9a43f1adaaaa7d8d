"""Elementwise and data-movement nodes: sums, differences and products, tables, concatenations, slices, reshapes.

Rule: an operation on two tensors is computed in float32, with one rounding per operation, as in `Elementwise`. It ends
in division, rounding, addition and clip (`OnnxWriter.round`) instead of QuantizeLinear. Onnxruntime's optimizer would
fuse QuantizeLinear after Add or Mul into a kernel that rounds differently.
"""

from __future__ import annotations

import numpy as np

from anytpu.chip.graph.nodes import Concatenate, Elementwise, Reshape, Slice, Table
from anytpu.chip.onnx.writer import SPATIAL_AXES, OnnxWriter

_OPERATORS = {"add": "Add", "subtract": "Sub", "multiply": "Mul"}


def write_elementwise(writer: OnnxWriter, node: Elementwise) -> str:
    """Write an elementwise operation on two tensors; return the name of its value."""
    first, second = (writer.dequantize(writer.values[tensor], tensor) for tensor in node.inputs)
    target = writer.quantization(node.output)
    result = writer.graph.add(_OPERATORS[node.kind], first, second)
    scaled = writer.graph.add("Div", result, np.float32(target.scale))
    return writer.round(scaled, target, *node.bounds)


def write_table(writer: OnnxWriter, node: Table) -> str:
    """Write a table as a Gather; return the name of its value.

    A negative index counts from the end, so the entries of negative integers come last.
    """
    source = writer.quantization(node.inputs[0])
    entries = writer.integers(node.table, writer.quantization(node.output))
    if not writer.offset(source):
        entries = np.roll(entries, source.low)
    return writer.graph.add("Gather", entries, writer.graph.cast(writer.values[node.inputs[0]], np.int32), axis=0)


def write_concatenate(writer: OnnxWriter, node: Concatenate) -> str:
    """Write a concatenation; return the name of its value."""
    return writer.graph.add("Concat", *writer.inputs(node), axis=SPATIAL_AXES[node.axis])


def write_slice(writer: OnnxWriter, node: Slice) -> str:
    """Write a slice; return the name of its value."""
    numbers = [np.array([number], np.int64) for number in (node.start, node.stop, SPATIAL_AXES[node.axis])]
    return writer.graph.add("Slice", *writer.inputs(node), *numbers)


def write_reshape(writer: OnnxWriter, node: Reshape) -> str:
    """Write a row-major reshape of `(height, width, channels)`; return the name of its value."""
    before, after = writer.shape(node.inputs[0]), writer.shape(node.output)
    last = writer.channels_last(writer.values[node.inputs[0]], before)
    return writer.channels_first(writer.graph.reshape(last, after), after)
