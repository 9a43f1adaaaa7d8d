"""Elementwise and data-movement nodes: sums, differences and products, tables, concatenations, slices, reshapes.

Rule: an operation on two tensors is computed in float32, with one rounding per operation, as in `QElementwise`. It ends
in division, rounding, addition and clip (`Writing.round`) instead of QuantizeLinear. Onnxruntime's optimizer would fuse
QuantizeLinear after Add or Mul into a kernel that rounds differently.
"""

from __future__ import annotations

import numpy as np

from anytpu.chip.onnx.writing import SPATIAL_AXES, Writing
from anytpu.chip.quantized.nodes import QConcatenate, QElementwise, QReshape, QSlice, QTable

_OPERATORS = {"add": "Add", "subtract": "Sub", "multiply": "Mul"}


def write_elementwise(writing: Writing, node: QElementwise) -> str:
    """Write an elementwise operation on two tensors; return the name of its value."""
    first, second = (writing.dequantize(writing.values[tensor], tensor) for tensor in node.inputs)
    target = writing.quantization(node.output)
    result = writing.graph.add(_OPERATORS[node.kind], first, second)
    scaled = writing.graph.add("Div", result, np.float32(target.scale))
    return writing.round(scaled, target, node.low, node.high)


def write_table(writing: Writing, node: QTable) -> str:
    """Write a table as a Gather; return the name of its value.

    A negative index counts from the end, so the entries of negative integers come last.
    """
    source = writing.quantization(node.inputs[0])
    entries = writing.integers(node.table, writing.quantization(node.output))
    if not writing.is_moved(source):
        entries = np.roll(entries, source.low)
    return writing.graph.add("Gather", entries, writing.graph.cast(writing.values[node.inputs[0]], np.int32), axis=0)


def write_concatenate(writing: Writing, node: QConcatenate) -> str:
    """Write a concatenation; return the name of its value."""
    return writing.graph.add("Concat", *writing.inputs(node), axis=SPATIAL_AXES[node.axis])


def write_slice(writing: Writing, node: QSlice) -> str:
    """Write a slice; return the name of its value."""
    numbers = [np.array([number], np.int64) for number in (node.start, node.stop, SPATIAL_AXES[node.axis])]
    return writing.graph.add("Slice", *writing.inputs(node), *numbers)


def write_reshape(writing: Writing, node: QReshape) -> str:
    """Write a row-major reshape of `(height, width, channels)`; return the name of its value."""
    before, after = writing.shape(node.inputs[0]), writing.shape(node.output)
    last = writing.channels_last(writing.values[node.inputs[0]], before)
    return writing.channels_first(writing.graph.reshape(last, after), after)
