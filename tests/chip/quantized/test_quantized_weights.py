"""Weights of whole numbers: near to the real ones, and no sum ever leaves 32 bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.quantized import weights as weights_module
from anytpu.chip.quantized.weights import max_sums, natural_scales, needed_bits, quantize_weights

ALL = (-255, 0)
WIDE = (-32768, 32767)


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_weights_are_rounded_to_a_127th_of_the_greatest_of_their_channel():
    weights, bias = random(0, 3, 3, 5, 7) * np.logspace(-3, 3, 7, dtype=np.float32), random(1, 7)
    integers, scales, biases = quantize_weights(weights, bias, 0.01, ALL)
    assert (integers.dtype, scales.dtype, biases.dtype) == (np.int8, np.float32, np.int32)
    assert np.abs(integers.astype(int)).max((0, 1, 2)).tolist() == [127] * 7
    assert (np.abs(integers * scales - weights).max((0, 1, 2)) <= scales * 0.5001).all()
    assert np.allclose(biases * (0.01 * scales), bias, atol=0.01 * scales.max())


def test_a_channel_of_zeros_keeps_its_bias():
    weights = np.zeros((1, 1, 4, 3), np.float32)
    weights[..., 0] = 1
    integers, scales, biases = quantize_weights(weights, np.float32([0, -3.25, 0]), 0.5, ALL)
    assert integers[..., 1:].max() == integers[..., 1:].min() == 0
    assert np.isclose(biases[1] * 0.5 * scales[1], -3.25, rtol=1e-6)
    assert biases[[0, 2]].tolist() == [0, 0]
    assert (scales > 0).all()
    assert np.isfinite(scales).all()


def test_a_bias_that_would_leave_32_bits_gets_a_coarser_channel():
    weights = np.full((1, 1, 2, 2), 1e-6, np.float32)
    integers, scales, biases = quantize_weights(weights, np.float32([1000, 0]), 0.01, ALL)
    assert np.isclose(biases[0] * 0.01 * scales[0], 1000, rtol=1e-6)
    assert biases[0] <= 2**30
    assert integers[0, 0, :, 1].tolist() == [127, 127]
    assert scales[0] > scales[1]


@pytest.mark.parametrize(("depth", "reach"), [(70_000, ALL), (700, WIDE), (20_000, WIDE)])
def test_deep_sums_stay_in_32_bits(depth: int, reach: tuple[int, int]):
    weights, bias = np.sign(random(0, 1, 1, depth, 2)), np.float32([0, 5])
    integers, scales, biases = quantize_weights(weights, bias, 1e-4, reach)
    real = integers[0, 0].astype(object)
    for channel in (0, 1):
        worst = [reach[0] if weight > 0 else reach[1] for weight in real[:, channel]]
        best = [reach[1] if weight > 0 else reach[0] for weight in real[:, channel]]
        sums = [
            sum(w * q for w, q in zip(real[:, channel], end, strict=True)) + int(biases[channel])
            for end in (worst, best)
        ]
        assert all(abs(one) < 2**31 for one in sums)
    # No coarser than that needs.
    assert np.abs(real.astype(int)).max() > 0.9 * 2**31 / (depth * max(map(abs, reach)))
    assert np.allclose(integers * scales, weights, atol=scales.max() / 2 * 1.001)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_no_input_can_make_a_sum_too_great(data):
    seed, depth = data.draw(st.integers(0, 2**32)), data.draw(st.sampled_from([1, 10, 3000]))
    reach = data.draw(st.sampled_from([ALL, WIDE, (0, 255), (0, 32767), (-100, 155)]))
    weights = random(seed, 1, 1, depth, 3) * data.draw(st.sampled_from([1e-12, 1.0, 1e9]))
    bias = random(seed + 1, 3) * data.draw(st.sampled_from([0.0, 1.0, 1e12]))
    integers, scales, biases = quantize_weights(weights, bias, data.draw(st.sampled_from([1e-9, 0.1, 1e9])), reach)
    below = np.where(integers > 0, reach[0], reach[1])
    above = np.where(integers > 0, reach[1], reach[0])
    for ends in (below, above):
        sums = (integers.astype(np.int64) * ends).sum((0, 1, 2)) + biases
        assert (np.abs(sums) < 2**31).all()
    assert np.isfinite(scales).all()
    assert (scales > 0).all()


def test_the_greatest_sum_is_that_of_the_worst_input():
    integers = np.int8([[[[2, -1], [-3, -1]]]])
    assert max_sums(integers, (-10, 100)).tolist() == [2 * 10 + 3 * 100, 200]
    assert max_sums(integers, (0, 5)).tolist() == [15, 10]


def test_needed_bits_are_enough():
    weights, bias = np.ones((1, 1, 5000, 1), np.float32), np.zeros(1, np.float32)
    bits = needed_bits(weights, bias, 1.0, WIDE)
    assert bits == 4  # 127 * 32,768 * 5,000 is 9.7 times 2**31
    assert needed_bits(weights, bias, 1.0, (-(2**15 >> bits), (2**15 >> bits) - 1)) == 0
    assert natural_scales(weights, bias, 1.0)[0] == np.float32(1 / 127)
    integers, _, _ = quantize_weights(weights, bias, 16.0, (-(2**15 >> bits), (2**15 >> bits) - 1))
    assert integers.min() == 127


def test_channels_in_blocks_are_as_all_at_once(monkeypatch: pytest.MonkeyPatch):
    weights, bias = random(0, 3, 3, 4, 10), random(1, 10)
    whole = quantize_weights(weights, bias, 0.1, WIDE)
    wider = (-(2**22), 2**22)
    bits = needed_bits(weights, bias, 0.1, wider)
    monkeypatch.setattr(weights_module, "_BLOCK_WEIGHTS", 3 * 36)
    blocks = quantize_weights(weights, bias, 0.1, WIDE)
    assert all(np.array_equal(one, other) for one, other in zip(whole, blocks, strict=True))
    assert needed_bits(weights, bias, 0.1, wider) == bits > 0
