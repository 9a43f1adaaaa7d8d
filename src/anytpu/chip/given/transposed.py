"""`spread`: the input of a transposed convolution of a quantized file, with zeros between its positions.

Idea: a transposed convolution of stride s is a plain one over its input with s - 1 zeros between the positions. Rows
are in position-major order, so positions beside zeros, as lines, are such an input.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from anytpu.chip.given.integer_graph import IntegerGraph
from anytpu.chip.given.values import HeldTensor
from anytpu.chip.graph.nodes import Concatenate, Pair
from anytpu.chip.network.resampling import MAX_LINES
from anytpu.errors import QuantizationError


def spread(graph: IntegerGraph, value: HeldTensor, steps: Pair) -> HeldTensor:
    """Return a picture with its positions some steps apart, and zeros between them.

    Raises:
        QuantizationError: the chip would copy too many lines.
    """
    own, tensor = graph.of(value), value.tensor
    height, width, channels = graph.shapes[tensor]
    if steps != (1, 1) and height * width * steps[1] > MAX_LINES:
        raise QuantizationError(
            f"The layer {graph.layer!r:.100} is a transposed convolution of {height} x {width} positions, and the chip "
            f"copies {MAX_LINES:,} lines at most. Compile the model that the file was made of, with calibration=: the "
            "host computes it."
        )
    zeros = np.full(own.high - own.low + 1, own.zero_point, own.dtype)
    # Columns first: each position is a line. Then each row is one.
    for axis, line in ((1, (height * width, 1, channels)), (0, (height, (width - 1) * steps[1] + 1, channels))):
        if steps[axis] > 1:
            lines = graph.shaped(tensor, line)
            empty = graph.looked_up(HeldTensor(lines, line), own, "zeros", zeros).tensor
            parts, wide = [lines, *[empty] * (steps[axis] - 1)], (line[0], line[1] * steps[axis], channels)
            joined = graph.add(Concatenate, parts, wide, own, axis=1)
            shape = (height, width * steps[1], channels) if axis else (height * steps[0], line[1], channels)
            whole = HeldTensor(graph.shaped(joined, shape), shape)
            tensor = graph.part(whole, axis, 0, shape[axis] - steps[axis] + 1).tensor
    return dataclasses.replace(value, tensor=tensor)
