"""Weights and biases in whole numbers, such that no sum ever leaves 32 bits.

Idea: each output channel has a scale of its own, its greatest weight over 127. The bias joins the sum, so it counts in
steps of input scale times weight scale. Where that is so fine that the bias, or the greatest sum that the inputs could
ever make, would not fit in 32 bits, the channel gets coarser steps: a little less exact, never wrapped around.

Rule: for every channel |bias| + the greatest |sum| over all integers that the input can hold stays below 2**31.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

GREATEST_SUM = 2**31 - 1
"""What a sum and its bias together may reach."""

_GREATEST_BIAS = 2.0**30
_BLOCK_WEIGHTS = 2**22
_LEAST_PRODUCT = 2.0**-100  # of the scales of an input and of weights; keeps float32 far from numbers it cannot hold


def quantize_weights(
    weights: np.ndarray, bias: np.ndarray, input_scale: float, reach: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Turn the weights and the bias of a convolution into integers.

    Args:
        weights: float32 `(kernel height, kernel width, input channels / groups, output channels)`.
        bias: float32 `(output channels,)`.
        input_scale: of the input.
        reach: the least and the greatest that an integer of the input can be, its zero point taken off.

    Returns:
        The weights, int8 in [-127, 127]; their scales, float32, one a channel; the bias, int32.

    Example:
        >>> weights, bias = np.float32([[[[2, 0], [-1, 0]]]]), np.float32([1, 0])
        >>> integers, scales, bias = quantize_weights(weights, bias, 0.5, (-255, 0))
        >>> integers[0, 0].T.tolist(), round(float(scales[0]), 4), bias.tolist()
        ([[127, -64], [0, 0]], 0.0157, [127, 0])
    """
    blocks = [_quantize(*block, input_scale, reach) for block in _blocks(weights, bias)]
    integers, scales, biases = zip(*blocks, strict=True)
    return np.concatenate(integers, axis=-1), np.concatenate(scales), np.concatenate(biases)


def _blocks(weights: np.ndarray, bias: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the weights and the bias some output channels at a time: they become float64, and may be many."""
    channels = max(_BLOCK_WEIGHTS // max(weights[..., :1].size, 1), 1)
    for start in range(0, len(bias), channels):
        yield weights[..., start : start + channels].astype(np.float64), bias[start : start + channels]


def _quantize(
    weights: np.ndarray, bias: np.ndarray, input_scale: float, reach: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scales = natural_scales(weights, bias, input_scale)
    while True:
        integers = np.clip(np.rint(weights / scales), -127, 127)
        biases = np.rint(bias / (input_scale * scales.astype(np.float64)))
        sums = greatest_sums(integers, reach) + np.abs(biases)
        if (sums <= GREATEST_SUM).all():
            return integers.astype(np.int8), scales, biases.astype(np.int32)
        # A hundredth more than needed, for what rounding the weights adds.
        scales = (scales * np.maximum(1, 1.01 * sums / GREATEST_SUM)).astype(np.float32)


def natural_scales(weights: np.ndarray, bias: np.ndarray, input_scale: float) -> np.ndarray:
    """Return the scale of each output channel before any sum is looked at, float32 `(output channels,)`.

    It is the greatest weight over 127; more, where the bias alone would take over 30 bits.
    """
    greatest = np.abs(weights).max(axis=tuple(range(weights.ndim - 1)), initial=0).astype(np.float64)
    scales = np.maximum(greatest / 127, np.abs(bias.astype(np.float64)) / (input_scale * _GREATEST_BIAS))
    return np.maximum(scales, _LEAST_PRODUCT / input_scale).astype(np.float32)


def needed_bits(weights: np.ndarray, bias: np.ndarray, input_scale: float, reach: tuple[int, int]) -> int:
    """Return by how many powers of two the steps of the input must grow so that no sum leaves 32 bits."""
    greatest = 0.0
    for some, offset in _blocks(weights, bias):
        scales = natural_scales(some, offset, input_scale)
        sums = greatest_sums(np.rint(some / scales), reach) + np.abs(offset / (input_scale * scales))
        greatest = max(greatest, float(sums.max(initial=0)))
    return int(np.ceil(np.log2(max(greatest / GREATEST_SUM, 1))))


def greatest_sums(integers: np.ndarray, reach: tuple[int, int]) -> np.ndarray:
    """Return, for each output channel, the greatest |sum| that inputs within `reach` can make with integer weights."""
    axes = tuple(range(integers.ndim - 1))
    total = integers.sum(axis=axes, dtype=np.float64)
    positive = np.maximum(integers, 0).sum(axis=axes, dtype=np.float64)
    negative = positive - total
    below, above = max(-reach[0], 0), max(reach[1], 0)
    return np.maximum(positive * above + negative * below, positive * below + negative * above)
