"""Quantize weights and biases such that no sum overflows int32.

Idea: each output channel has its own scale, the maximum absolute weight over 127. The bias is added to the sum, so its
step is input scale times weight scale. If this step is so fine that the bias or a sum could overflow int32, the channel
gets a coarser scale. This loses some precision but never wraps.

Rule: for every channel, |bias| + the maximum |sum| over all possible input integers is below 2**31.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

MAX_SUM = 2**31 - 1
"""Maximum absolute value of a sum and its bias together."""

_MAX_BIAS = 2.0**30
_BLOCK_WEIGHTS = 2**22
_MIN_PRODUCT = 2.0**-100  # minimum of input scale * weight scale; keeps float32 far from underflow


def quantize_weights(
    weights: np.ndarray, bias: np.ndarray, input_scale: float, bounds: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Turn the weights and the bias of a convolution into integers.

    Args:
        weights: float32 `(kernel height, kernel width, input channels / groups, output channels)`.
        bias: float32 `(output channels,)`.
        input_scale: scale of the input.
        bounds: minimum and maximum of q - zero_point over the possible integers q of the input.

    Returns:
        The weights, int8 in [-127, 127]; their scales, float32 `(output channels,)`; the bias, int32.

    Example:
        >>> weights, bias = np.float32([[[[2, 0], [-1, 0]]]]), np.float32([1, 0])
        >>> integers, scales, bias = quantize_weights(weights, bias, 0.5, (-255, 0))
        >>> integers[0, 0].T.tolist(), round(float(scales[0]), 4), bias.tolist()
        ([[127, -64], [0, 0]], 0.0157, [127, 0])
    """
    blocks = [_quantize(*block, input_scale, bounds) for block in _blocks(weights, bias)]
    integers, scales, biases = zip(*blocks, strict=True)
    return np.concatenate(integers, axis=-1), np.concatenate(scales), np.concatenate(biases)


def _blocks(weights: np.ndarray, bias: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield weights, as float64, and bias in blocks of output channels, to limit the memory."""
    channels = max(_BLOCK_WEIGHTS // max(weights[..., :1].size, 1), 1)
    for start in range(0, len(bias), channels):
        yield weights[..., start : start + channels].astype(np.float64), bias[start : start + channels]


def _quantize(
    weights: np.ndarray, bias: np.ndarray, input_scale: float, bounds: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scales = natural_scales(weights, bias, input_scale)
    while True:
        integers = np.clip(np.rint(weights / scales), -127, 127)
        biases = np.rint(bias / (input_scale * scales.astype(np.float64)))
        sums = max_sums(integers, bounds) + np.abs(biases)
        if (sums <= MAX_SUM).all():
            return integers.astype(np.int8), scales, biases.astype(np.int32)
        # 1 % more than needed, because rounding the weights may increase the sum.
        scales = (scales * np.maximum(1, 1.01 * sums / MAX_SUM)).astype(np.float32)


def natural_scales(weights: np.ndarray, bias: np.ndarray, input_scale: float) -> np.ndarray:
    """Return the scale of each output channel, without regard to its sum, float32 `(output channels,)`.

    It is the maximum absolute weight over 127; larger if the bias alone would exceed 2**30.
    """
    maximum = np.abs(weights).max(axis=tuple(range(weights.ndim - 1)), initial=0).astype(np.float64)
    scales = np.maximum(maximum / 127, np.abs(bias.astype(np.float64)) / (input_scale * _MAX_BIAS))
    return np.maximum(scales, _MIN_PRODUCT / input_scale).astype(np.float32)


def needed_bits(weights: np.ndarray, bias: np.ndarray, input_scale: float, bounds: tuple[int, int]) -> int:
    """Return the exponent n for which an input scale 2**n times as large avoids every int32 overflow."""
    maximum = 0.0
    for some, offset in _blocks(weights, bias):
        scales = natural_scales(some, offset, input_scale)
        sums = max_sums(np.rint(some / scales), bounds) + np.abs(offset / (input_scale * scales))
        maximum = max(maximum, float(sums.max(initial=0)))
    return int(np.ceil(np.log2(max(maximum / MAX_SUM, 1))))


def max_sums(integers: np.ndarray, bounds: tuple[int, int]) -> np.ndarray:
    """Return the maximum |sum| of each output channel over all inputs within `bounds`, float64."""
    axes = tuple(range(integers.ndim - 1))
    total = integers.sum(axis=axes, dtype=np.float64)
    positive = np.maximum(integers, 0).sum(axis=axes, dtype=np.float64)
    negative = positive - total
    below, above = max(-bounds[0], 0), max(bounds[1], 0)
    return np.maximum(positive * above + negative * below, positive * below + negative * above)
