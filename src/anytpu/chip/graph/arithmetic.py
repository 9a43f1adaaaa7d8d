"""The float32 multipliers and the clips of a quantized network, in one place.

Idea: two programs that compute a multiplier in different ways may differ in its last bit. Some output integers then
differ too. So the reference, the compiler and the ONNX writer all call this module.

Rule: each operation is rounded to float32, in the order given in `nodes.py`.
"""

from __future__ import annotations

import numpy as np

from anytpu.chip.graph.nodes import Padding, Pair, Pool, Quantization, Shape


def convolution_multipliers(source: Quantization, weight_scales: np.ndarray, target: Quantization) -> np.ndarray:
    """Return the multipliers of a convolution's sums: f32(f32(source scale * weight scale) / target scale).

    Args:
        source, target: quantization of the input and of the output.
        weight_scales: float32 `(output channels,)`.

    Returns:
        float32 `(output channels,)`.

    Example:
        >>> convolution_multipliers(Quantization(0.5), np.float32([0.25, 1]), Quantization(2.0))
        array([0.0625, 0.25  ], dtype=float32)
    """
    return np.float32(source.scale) * np.asarray(weight_scales, np.float32) / np.float32(target.scale)


def average_multipliers(source: Quantization, counts: np.ndarray, target: Quantization) -> np.ndarray:
    """Return the multipliers of the sums of an average pool, float32 of the shape of `counts`.

    A multiplier is f32(f32(source scale * f32(1 / count)) / target scale). A count of 0 is taken as 1: that window is
    entirely outside the input, and its sum is 0.

    Example:
        >>> average_multipliers(Quantization(0.5), np.array([4, 2]), Quantization(1.0))
        array([0.125, 0.25 ], dtype=float32)
    """
    shares = np.float32(1) / np.maximum(counts, 1).astype(np.float32)
    return np.float32(source.scale) * shares / np.float32(target.scale)


def window_counts(window: Pair, strides: Pair, padding: Padding, source: Shape, target: Shape) -> np.ndarray:
    """Return the number of positions of each window inside the input, int64 `(target height, target width)`.

    Example:
        >>> window_counts((2, 2), (2, 2), ((0, 1), (0, 1)), (3, 3, 8), (2, 2, 8))
        array([[4, 2],
               [2, 1]])
    """

    def along(axis: int) -> np.ndarray:
        first = np.arange(target[axis]) * strides[axis] - padding[axis][0]
        return np.minimum(first + window[axis], source[axis]) - np.maximum(first, 0)

    height, width = (np.maximum(along(axis), 0) for axis in (0, 1))
    return height[:, None] * width[None, :]


def pool_counts(node: Pool, source: Shape, target: Shape) -> np.ndarray:
    """Return the divisors of an average pool, int64 `(target height, target width)`."""
    if node.counts_padding:
        return np.full(target[:2], node.window[0] * node.window[1])
    return window_counts(node.window, node.strides, node.padding, source, target)


def clip_bounds(target: Quantization, low: float | None, high: float | None) -> tuple[int, int]:
    """Return the integer bounds of a clip of the real numbers to `low` and `high`.

    None or an infinity gives the end of the integers' range.

    Example:
        >>> clip_bounds(Quantization(0.1, -28), 0.0, 6.0), clip_bounds(Quantization(0.1, -28), None, None)
        ((-28, 32), (-128, 127))
    """
    bottom = target.low if low is None else int(target.quantize(np.asarray(low)))
    top = target.high if high is None else int(target.quantize(np.asarray(high)))
    return bottom, top
