"""Histograms that see a tensor piece by piece, the three ways to a range, and the scales that cover it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.graph.nodes import Quantization
from anytpu.chip.quantized.ranges import Histogram, Range
from anytpu.chip.quantized.scales import quantization_of, quantization_of_integers, without_flat_ends

numbers = st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False)


def histogram(*pieces: np.ndarray) -> Histogram:
    made = Histogram()
    for piece in pieces:
        made.add(np.asarray(piece, np.float32).ravel())
    return made


@given(st.lists(st.lists(numbers, max_size=8), max_size=6))
@settings(max_examples=200, deadline=None)
def test_nothing_is_lost_when_bins_are_joined(pieces):
    made = histogram(*map(np.array, pieces))
    flat = np.float32([number for piece in pieces for number in piece])
    assert made.counts.sum() + made.zeros == flat.size
    assert (made.low, made.high) == (min(flat.min(initial=0), 0), max(flat.max(initial=0), 0))
    others = flat[flat != 0].astype(np.float64)
    if others.size:
        width = 2 * made.extent / made.counts.size
        # Each number lies in the bin that counts it, or at its edge.
        assert all(made.counts[np.abs(made.centers - number) <= width].any() for number in others)
        assert np.isclose((made.centers * made.counts).sum(), others.sum(), atol=width * others.size)


def test_the_order_of_the_pieces_does_not_matter():
    rng = np.random.default_rng(0)
    small, large = rng.normal(size=1000), 100 * rng.normal(size=1000)
    one, other = histogram(small, large), histogram(large, small)
    assert one.extent == other.extent
    assert np.abs(one.counts - other.counts).max() <= 1  # a number at the edge of two bins
    assert one.range("minmax", 8) == other.range("minmax", 8)


def test_a_tensor_of_zeros_has_no_width():
    for method in ("minmax", "percentile", "mse"):
        made = histogram(np.zeros(100)).range(method, 8)
        assert (made.low, made.high) == (0, 0)
        assert quantization_of(made, 8) == Quantization(1.0, 0, 8)
        assert quantization_of(made, 16) == Quantization(1.0, 0, 16)


def test_percentile_leaves_out_the_outermost():
    rng = np.random.default_rng(0)
    seen = np.concatenate([rng.uniform(-1, 3, 1_000_000), [50.0] * 3, [-20.0] * 3])
    made = histogram(seen).range("percentile", 8)
    assert -1.02 < made.low < -0.99
    assert 2.99 < made.high < 3.02
    # Zeros are numbers too: of 200 numbers over 0 among two millions, fewer than 0.01 % are clipped.
    relu = np.concatenate([np.zeros(2_000_000), np.full(150, 1.0), np.full(50, 8.0)])
    assert histogram(relu).range("percentile", 8).high < 1.01


def test_no_range_goes_beyond_what_was_seen():
    rng = np.random.default_rng(1)
    for seen in (rng.normal(size=5000), rng.exponential(size=5000), -rng.exponential(size=5000)):
        whole = histogram(seen).range("minmax", 8)
        for method in ("percentile", "mse"):
            part = histogram(seen).range(method, 8)
            assert np.float32(seen.min()) <= part.low <= 0 or part.low == 0
            assert part.high <= max(float(np.float32(seen.max())), 0)
            assert whole.union(part) == whole


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("spread", ["normal", "exponential", "outlier"])
def test_mse_has_the_least_error(bits: int, spread: str):
    rng = np.random.default_rng(2)
    seen = {
        "normal": lambda: rng.normal(size=20000),
        "exponential": lambda: rng.exponential(size=20000),
        "outlier": lambda: np.concatenate([rng.normal(size=20000), [1000.0]]),
    }[spread]().astype(np.float32)

    def error(covered: Range) -> float:
        quantization = quantization_of(covered, bits)
        return float(np.square(quantization.dequantize(quantization.quantize(seen)) - seen, dtype=np.float64).mean())

    found = histogram(seen)
    best = error(found.range("mse", bits))
    # A hundredth for the luck of rounding, or with steps wider than the bulk of the numbers, a tenth.
    tolerance = 1.1 if spread == "outlier" else 1.01
    assert best <= error(found.range("minmax", bits)) * tolerance
    assert best <= error(found.range("percentile", bits)) * tolerance
    shares = np.linspace(0.1, 1, 19)
    tried = min(error(Range(found.low * a, found.high * b)) for a in shares for b in shares)
    assert best <= tried * tolerance


@given(st.floats(-1e6, 0), st.floats(0, 1e6), st.sampled_from([8, 16]))
@settings(max_examples=200, deadline=None)
def test_zero_is_an_integer_and_the_ends_are_reached(low: float, high: float, bits: int):
    covered = Range(low, high)
    quantization = quantization_of(covered, bits)
    assert quantization.low <= quantization.zero_point <= quantization.high
    assert quantization.scale == float(np.float32(quantization.scale))
    assert float(quantization.dequantize(quantization.quantize(np.zeros(1)))[0]) == 0.0
    ends = np.float32([low, high])
    lost = np.abs(quantization.dequantize(quantization.quantize(ends)) - ends)
    # Half a step for rounding, as much for the zero point.
    assert (lost <= quantization.scale * 1.01 + 1e-19).all()


def test_integers_of_the_user_are_exact():
    def exact(dtype: str, low: float, high: float, bits: int = 8):
        return quantization_of_integers(np.dtype(dtype), Range(low, high), bits)

    assert exact("uint8", 0, 3) == Quantization(1.0, -128)
    assert exact("int8", 0, 3) == Quantization(1.0, 0)
    assert exact("bool", 0, 1) == Quantization(1.0, -1)
    assert exact("int32", 0, 255) == Quantization(1.0, -128)
    assert exact("int32", -200, 0) == Quantization(1.0, 100)
    assert exact("int32", 0, 256) is None
    assert exact("uint8", 0, 3, 16) == Quantization(1.0, 0, 16)
    assert exact("int32", -32767, 32767, 16) == Quantization(1.0, 0, 16)
    assert exact("int32", 0, 40000, 16) is None
    # Every one of them, there and back.
    for dtype in ("uint8", "int8"):
        every = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1)
        for bits in (8, 16):
            quantization = exact(dtype, 0, 1, bits)
            assert quantization
            assert np.array_equal(quantization.dequantize(quantization.quantize(every)), every)


def test_flat_ends_are_left_out():
    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    part = without_flat_ends(Range(-40, 40), sigmoid, 1 / 256)
    assert 6.7 < part.high < 7
    assert -7 < part.low < -6.7
    part = without_flat_ends(Range(-1, 1), sigmoid, 1 / 256)
    assert 0.99 < part.high <= 1
    assert -1 <= part.low < -0.99
    assert without_flat_ends(Range(-5, 5), lambda x: x * 0 + 3, 0.1) == Range(0, 0)
    # Where it is no number, nothing is known of its ends.
    with np.errstate(invalid="ignore"):
        assert without_flat_ends(Range(-5, 4), np.sqrt, 0.1).low == -5
