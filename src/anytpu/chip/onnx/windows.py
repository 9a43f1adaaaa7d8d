"""Host operations with windows: convolutions of any rank, including transposed convolutions, and padding, in float32.

Rule: a transposed convolution is, as in StableHLO, a convolution of an input dilated with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anytpu.chip.network.operations import Operation
from anytpu.chip.onnx.batched_value import BatchedValue, UntranslatableError
from anytpu.chip.onnx.graph import OnnxGraph


def write_convolution(graph: OnnxGraph, operation: Operation, operands: Sequence[BatchedValue | np.ndarray]) -> str:
    """Write a convolution with a constant kernel; return the name of its value."""
    picture, kernel = operands
    if not isinstance(picture, BatchedValue) or isinstance(kernel, BatchedValue):
        raise UntranslatableError("with a kernel that is not constant")
    attributes, axes = operation.attributes, operation.attributes["dimension_numbers"]
    batch, *spatial, features = axes["input"]
    value = graph.transpose(picture.value, (batch, features, *spatial))
    sizes = [picture.shape[axis] for axis in spatial]
    value, sizes = _spread(graph, value, picture.shape[features], sizes, attributes["lhs_dilation"])
    value = cropped(graph, value, sizes, attributes["padding"], 2)
    result = graph.add(
        "Conv",
        value,
        _oi(kernel, axes["kernel"], attributes["window_reversal"]),
        strides=list(attributes["window_strides"]),
        dilations=list(attributes["rhs_dilation"]),
        pads=[max(0, low) for low, _ in attributes["padding"]] + [max(0, high) for _, high in attributes["padding"]],
        group=attributes["feature_group_count"],
    )
    out_batch, *out_spatial, out_features = axes["output"]
    return graph.transpose(result, [int(n) for n in np.argsort((out_batch, out_features, *out_spatial))])


def write_pad(graph: OnnxGraph, operation: Operation, operands: Sequence[BatchedValue | np.ndarray]) -> str:
    """Write padding with a constant; return the name of its value."""
    source, filler = operands
    if (
        not isinstance(source, BatchedValue)
        or isinstance(filler, BatchedValue)
        or any(operation.attributes["interior_padding"])
    ):
        raise UntranslatableError("with more than a constant around a value")
    lows, highs = operation.attributes["edge_padding_low"], operation.attributes["edge_padding_high"]
    pairs = list(zip(lows, highs, strict=True))
    # The batch axis, whose size is open, is neither padded nor cropped.
    value = cropped(graph, source.value, source.shape, pairs, 0)
    added = [max(0, low) for low in lows] + [max(0, high) for high in highs]
    return graph.add("Pad", value, np.array(added, np.int64), filler)


def cropped(graph: OnnxGraph, value: str, sizes: Sequence[int], pairs: Sequence[Sequence[int]], first: int) -> str:
    """Crop a value by its negative padding, along the axes from `first` on."""
    for axis, (size, (low, high)) in enumerate(zip(sizes, pairs, strict=True), first):
        if min(low, high) < 0:
            bounds = max(0, -low), size - max(0, -high), axis
            value = graph.add("Slice", value, *(np.array([number], np.int64) for number in bounds))
    return value


def _oi(kernel: np.ndarray, axes: Sequence[int], reversal: Sequence[bool]) -> np.ndarray:
    """Return a kernel in ONNX's order: output features, input features, positions."""
    *spatial, features, outputs = axes
    turned = np.flip(kernel, tuple(axis for axis, turn in zip(spatial, reversal, strict=True) if turn))
    return np.ascontiguousarray(turned.transpose(outputs, features, *spatial))


def _spread(
    graph: OnnxGraph, value: str, features: int, sizes: list[int], steps: Sequence[int]
) -> tuple[str, list[int]]:
    """Dilate `(batch, features, positions...)` with zeros between positions; return the value and its new sizes."""
    sizes = list(sizes)
    for index, step in enumerate(steps):
        if step > 1:
            split = graph.reshape(value, (features, *sizes[: index + 1], 1, *sizes[index + 1 :]))
            around = np.zeros((2, len(sizes) + 3), np.int64)
            around[1, index + 3] = step - 1
            filled = graph.add("Pad", split, around.ravel())
            whole = graph.reshape(filled, (features, *sizes[:index], sizes[index] * step, *sizes[index + 1 :]))
            stop = (sizes[index] - 1) * step + 1
            value = graph.add("Slice", whole, *(np.array([n], np.int64) for n in (0, stop, index + 2)))
            sizes[index] = stop
    return value, sizes
