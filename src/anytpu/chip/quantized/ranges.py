"""`Histogram`: the distribution of a tensor's values, and the choice of the range that the integers cover.

Idea: values outside the range are clipped. Values inside are rounded to a step that is proportional to the range.
"minmax" clips nothing. "percentile" clips the outermost 0.01 % of the values. "mse" minimizes the sum of the squared
clipping and rounding errors.

Rule: a tensor is never kept. Its values are counted in bins as they are computed, so one pass over the examples is
enough. If a value is outside the bins, they are merged in pairs until they cover it. Exact zeros have no error in any
range and are counted separately; a ReLU makes many of them.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

Method = Literal["minmax", "percentile", "mse"]
"""The method that chooses a range from the observed values."""

PERCENTILE = 99.99
"""Share of the values that "percentile" keeps inside the range, in percent."""

_BINS = 8192
_CANDIDATES = 64


@dataclasses.dataclass(frozen=True)
class Range:
    """The minimum and maximum real value that the integers of a tensor should represent; it contains 0."""

    low: float = 0.0
    high: float = 0.0

    def union(self, other: Range) -> Range:
        """Return the range that covers both.

        Example:
            >>> Range(-1, 2).union(Range(0, 3))
            Range(low=-1, high=3)
        """
        return Range(min(self.low, other.low), max(self.high, other.high))


def step(low: np.ndarray | float, high: np.ndarray | float, bits: int) -> np.ndarray:
    """Return the real difference between consecutive integers that cover a range; 16 bits are symmetric about 0.

    Example:
        >>> float(step(-1, 254, 8)), float(step(0, 32767, 16))
        (1.0, 1.0)
    """
    if bits == 8:
        return (np.asarray(high, np.float64) - low) / 255
    return np.maximum(np.asarray(high, np.float64), -np.asarray(low, np.float64)) / (2 ** (bits - 1) - 1)


class Histogram:
    """A histogram of a tensor's values, in 8192 equal bins whose range can grow.

    Attributes:
        low, high: minimum and maximum so far; at most 0 and at least 0.
        extent: the bins cover [-extent, extent); a power of two, 0 before the first value.
        counts: number of nonzero values in each bin, float64 `(8192,)`.
        zeros: number of values that are exactly 0.
    """

    def __init__(self):
        self.low = self.high = 0.0
        self.extent = 0.0
        self.counts = np.zeros(_BINS)
        self.zeros = 0

    def add(self, numbers: np.ndarray, *, counted: bool = True) -> None:
        """Add finite values; without `counted` update only the minimum and the maximum."""
        self.low = min(self.low, float(numbers.min(initial=0)))
        self.high = max(self.high, float(numbers.max(initial=0)))
        if not counted:
            return
        others = numbers[numbers != 0].astype(np.float64)
        self.zeros += numbers.size - others.size
        if others.size:
            self._widen(max(-self.low, self.high))
            places = np.floor((others + self.extent) * (_BINS / 2 / self.extent)).astype(np.int64)
            self.counts += np.bincount(places.clip(0, _BINS - 1), minlength=_BINS)

    def _widen(self, needed: float) -> None:
        """Merge bins in pairs until they cover `needed`."""
        if not self.extent:
            self.extent = 2.0 ** np.ceil(np.log2(needed))
        while self.extent < needed:
            half = self.counts.reshape(-1, 2).sum(1)
            self.counts = np.concatenate([np.zeros(_BINS // 4), half, np.zeros(_BINS // 4)])
            self.extent *= 2

    @property
    def centers(self) -> np.ndarray:
        """The centers of the bins, float64 `(8192,)`."""
        return (np.arange(_BINS) + 0.5) * (2 * self.extent / _BINS) - self.extent

    def range(self, method: Method, bits: int) -> Range:
        """Return the range that integers of `bits` bits should cover."""
        if method == "percentile" and self.counts.any():
            return self._percentile(PERCENTILE)
        if method == "mse" and self.counts.any():
            return self._least_squares(bits)
        return Range(self.low, self.high)

    def _percentile(self, percentile: float) -> Range:
        beyond = (1 - percentile / 100) / 2
        counts = self.counts.copy()
        counts[_BINS // 2] += self.zeros
        share = np.cumsum(counts) / counts.sum()
        edges = np.linspace(-self.extent, self.extent, _BINS + 1)
        low = edges[np.searchsorted(share, beyond, side="right")]
        high = edges[np.searchsorted(share, 1 - beyond, side="left") + 1]
        return Range(float(min(max(low, self.low), 0.0)), float(max(min(high, self.high), 0.0)))

    def _least_squares(self, bits: int) -> Range:
        """Return the range with the minimum squared error: a coarse search over [low, high], then a fine search."""
        far = np.geomspace(1 / 512, 1, _CANDIDATES)
        near = np.linspace(0.9, 1.1, _CANDIDATES)
        rough = self._best(self.low * far, self.high * far, bits)
        return self._best(np.maximum(rough.low * near, self.low), np.minimum(rough.high * near, self.high), bits)

    def _best(self, lows: np.ndarray, highs: np.ndarray, bits: int) -> Range:
        """Return the range [low, high] with the minimum squared error, over all pairs of `lows` and `highs`."""
        clipped_low, low_error = _clipping(self.centers, self.counts, lows)
        clipped_high, high_error = _clipping(-self.centers[::-1], self.counts[::-1], -highs)
        inside = self.counts.sum() - clipped_low[:, None] - clipped_high
        error = low_error[:, None] + high_error + inside * self._rounding(step(lows[:, None], highs, bits))
        best_low, best_high = np.unravel_index(np.argmin(error), error.shape)
        return Range(float(lows[best_low]), float(highs[best_high]))

    def _rounding(self, width: np.ndarray) -> np.ndarray:
        """Return the mean squared rounding error for a step width w: per value x, the minimum of w^2 / 12 and x^2."""
        half = _BINS // 2
        counts = self.counts[half:] + self.counts[half - 1 :: -1]
        squares = self.centers[half:] ** 2
        count, energy = (np.concatenate([[0], np.cumsum(x)]) for x in (counts, counts * squares))
        small = np.searchsorted(squares, width**2 / 12)
        return (energy[small] + (count[-1] - count[small]) * width**2 / 12) / count[-1]


def _clipping(numbers: np.ndarray, counts: np.ndarray, lows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each of `lows`, the count of sorted values below it and the sum of their squared distances."""
    below = np.searchsorted(numbers, lows)
    sums = [np.concatenate([[0], np.cumsum(counts * numbers**power)])[below] for power in (0, 1, 2)]
    return sums[0], sums[2] - 2 * lows * sums[1] + lows**2 * sums[0]
