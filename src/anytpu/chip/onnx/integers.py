"""What is done integer by integer: sums and products of two tensors, tables; and what only moves integers.

Rule: of two tensors the operation is done in float32, one rounding an operation, as `QElementwise` says. The last step
is written as division, rounding, addition, clip (`Writing.round`), since QuantizeLinear after Add or Mul is what
onnxruntime's optimizer turns into a kernel that rounds otherwise.
"""

from __future__ import annotations

import numpy as np

from anytpu.chip.onnx.writing import SPATIAL_AXES, Writing
from anytpu.chip.quantized.nodes import QConcatenate, QElementwise, QReshape, QSlice, QTable

_OPERATORS = {"add": "Add", "subtract": "Sub", "multiply": "Mul"}


def write_elementwise(writing: Writing, node: QElementwise) -> str:
    """Write an operation on two tensors; return its value."""
    first, second = (writing.dequantize(writing.values[tensor], tensor) for tensor in node.inputs)
    target = writing.quantization(node.output)
    result = writing.graph.add(_OPERATORS[node.kind], first, second)
    scaled = writing.graph.add("Div", result, np.float32(target.scale))
    return writing.round(scaled, target, node.low, node.high)


def write_table(writing: Writing, node: QTable) -> str:
    """Write a table as a Gather; return its value.

    Indices below 0 count from the end, so the entries of negative integers are the last ones.
    """
    source = writing.quantization(node.inputs[0])
    entries = writing.integers(node.table, writing.quantization(node.output))
    if not writing.is_moved(source):
        entries = np.roll(entries, source.low)
    return writing.graph.add("Gather", entries, writing.graph.cast(writing.values[node.inputs[0]], np.int32), axis=0)


def write_concatenate(writing: Writing, node: QConcatenate) -> str:
    """Write tensors side by side; return the value."""
    return writing.graph.add("Concat", *writing.inputs(node), axis=SPATIAL_AXES[node.axis])


def write_slice(writing: Writing, node: QSlice) -> str:
    """Write a part of a tensor; return its value."""
    numbers = [np.array([number], np.int64) for number in (node.start, node.stop, SPATIAL_AXES[node.axis])]
    return writing.graph.add("Slice", *writing.inputs(node), *numbers)


def write_reshape(writing: Writing, node: QReshape) -> str:
    """Write the same integers in another shape, in the order of (height, width, channels); return their value."""
    before, after = writing.shape(node.inputs[0]), writing.shape(node.output)
    last = writing.channels_last(writing.values[node.inputs[0]], before)
    return writing.channels_first(writing.graph.reshape(last, after), after)
