"""The scale and the zero point for a range of real numbers.

Idea: the integers divide the range into equal steps, and an integer represents 0 exactly. Known ranges take precedence
over observed ranges: a sigmoid is in [0, 1], a tanh in [-1, 1], and a pixel has 256 values.

Rule: with 8 bits the quantization is asymmetric: the integers cover the range from end to end. With 16 bits it is
symmetric: the zero point is 0, so that sums stay small. The fixed scales are from TensorFlow Lite's quantization
specification.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anytpu.chip.graph.nodes import Quantization
from anytpu.chip.quantized.ranges import Range, step

FIXED = {
    (8, "sigmoid"): Quantization(1 / 256, -128),
    (8, "tanh"): Quantization(1 / 128, 0),
    (16, "sigmoid"): Quantization(1 / 32768, 0, 16),
    (16, "tanh"): Quantization(1 / 32768, 0, 16),
}
"""Fixed quantizations of function outputs, by bits and kind of function."""

MIN_WIDTH = 1e-20
"""Minimum width of a range; the scale of a narrower range is too small for float32 arithmetic."""

_GRID = 1024


def quantization_of(covered: Range, bits: int) -> Quantization:
    """Return the scale and the zero point for a range; scale 1 if its width is below `MIN_WIDTH`.

    Example:
        >>> quantization_of(Range(-1.0, 1.55), 8).zero_point, quantization_of(Range(0, 0), 8)
        (-28, Quantization(scale=1.0, zero_point=0, bits=8))
    """
    if covered.high - covered.low < MIN_WIDTH:
        return Quantization(1.0, 0, bits)
    scale = float(np.float32(step(covered.low, covered.high, bits)))
    if bits == 16:
        return Quantization(scale, 0, bits)
    return Quantization(scale, int(np.clip(np.rint(-128 - covered.low / scale), -128, 127)), bits)


def quantization_of_integers(dtype: np.dtype, covered: Range, bits: int) -> Quantization | None:
    """Return a quantization that represents an integer input exactly; None if its values do not fit.

    Example:
        >>> quantization_of_integers(np.dtype("uint8"), Range(0, 17), 8)
        Quantization(scale=1.0, zero_point=-128, bits=8)
    """
    bounds = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    low, high = bounds if bounds[1] - bounds[0] < 2**bits else (covered.low, covered.high)
    if bits == 16:
        return Quantization(1.0, 0, 16) if max(-low, high) < 2**15 else None
    if high - low > 255:
        return None
    return Quantization(1.0, int(np.clip(np.rint(-0.5 - (low + high) / 2), -128, 127)))


def without_flat_ends(covered: Range, function: Callable[[np.ndarray], np.ndarray], step_width: float) -> Range:
    """Return the part of a range beyond which a function changes by under a quarter of `step_width` on each side.

    For example, sigmoid(-20) and sigmoid(-7) are the same integer. So a tensor that only a sigmoid takes does not need
    the values below -7.

    Example:
        >>> part = without_flat_ends(Range(-20.0, 3.0), lambda x: np.maximum(x, 0), 0.5)
        >>> part.low > -0.5, part.high > 2.7
        (True, True)
    """

    def end(bound: float) -> float:
        grid = np.linspace(0, bound, _GRID).astype(np.float32)
        with np.errstate(all="ignore"):
            away = np.abs(np.asarray(function(grid), np.float64) - np.asarray(function(grid[-1:]), np.float64))
        # A NaN counts as a change.
        changing = np.flatnonzero(~(away < step_width / 4))
        return float(grid[min(changing[-1] + 1, _GRID - 1)]) if changing.size else 0.0

    return Range(end(covered.low), end(covered.high))
