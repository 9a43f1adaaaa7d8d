"""Products: the machine's sums are those of the text, for every flag, geometry and width."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.isa.instructions import Activate, Convolve, MatrixMultiply, ReadWeights
from anytpu.chip.machine import products, run
from machine_samples import SMALL, assert_literal, blocks, configured, image_of, literally, parameters

ARRAY = SMALL.array


def weights_of(rng: np.random.Generator, tiles: int) -> np.ndarray:
    """Return parameters (block 0), then tiles."""
    scale = parameters(rng.integers(-500, 500, ARRAY), rng.uniform(1e-3, 0.1, ARRAY))
    return blocks(scale, *rng.integers(-128, 128, (tiles, ARRAY, ARRAY), np.int8))


def shown(rows: int, accumulator: int = 0, wide_out: bool = False) -> list:
    """Return instructions that write the sums to the last rows of the buffer."""
    return [
        *configured(
            out_pitch=1, out_high_offset=rows, low=-32768 if wide_out else -128, high=32767 if wide_out else 127
        ),
        ReadWeights(0, 1, "parameters"),
        Activate("scale", accumulator, SMALL.buffer_units - 2 * rows, rows, wide_out=wide_out),
    ]


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("pitch", [1, 2])
def test_multiply_adds_one_plane_after_another(unsigned, pitch):
    rng = np.random.default_rng(pitch)
    code = [
        *configured(pitch=pitch, plane_stride=21),
        ReadWeights(1, 5),
        MatrixMultiply(3, 7, 5, repeat=3, unsigned=unsigned),
        MatrixMultiply(90, 7, 5, repeat=2, accumulate=True, unsigned=unsigned),
        *shown(5, 7, True),
    ]
    assert_literal(image_of(code, weights_of(rng, 5)), 0)


def test_keep_uses_the_tile_that_is_there():
    code = [
        *configured(pitch=1, plane_stride=5),
        ReadWeights(1, 3),
        MatrixMultiply(0, 0, 4),
        MatrixMultiply(8, 4, 4, keep=True),
        MatrixMultiply(8, 4, 4, repeat=2, keep=True, accumulate=True),
        MatrixMultiply(30, 8, 4),
        *shown(12, 0, True),
    ]
    assert_literal(image_of(code, weights_of(np.random.default_rng(1), 3)), 1)


def test_wide_products_take_both_bytes():
    code = [
        *configured(pitch=1, high_offset=40, plane_stride=100),
        ReadWeights(1, 2),
        MatrixMultiply(2, 0, 9, repeat=2, wide=True),
        *shown(9, 0, True),
    ]
    assert_literal(image_of(code, weights_of(np.random.default_rng(2), 2)), 2)


def test_sums_wrap_at_32_bits():
    tiles = [np.full((ARRAY, ARRAY), -128, np.int8)]
    scale = parameters(np.full(ARRAY, 2**31 - 1), np.full(ARRAY, 2.0**-24))
    code = [
        *configured(pitch=1, high_offset=1),
        ReadWeights(1, 1),
        MatrixMultiply(0, 0, 4, wide=True),
        *[MatrixMultiply(0, 0, 4, wide=True, keep=True, accumulate=True)] * 70,
        *shown(4),
    ]
    image = image_of(code, blocks(scale, *tiles))
    content = np.full((1, SMALL.buffer_units, 1, 32), -128, np.int8)
    np.testing.assert_array_equal(run(image, {"whole": content})["whole"], literally(image, content))


@pytest.mark.parametrize("kind", ["signed", "wide"])
def test_passes_that_are_gathered_some_at_a_time(kind, monkeypatch):
    monkeypatch.setattr(products, "GATHERED_NUMBERS", 100)
    geometry = {"batch": 2, "in_height": 4, "in_width": 3, "out_width": 3, "kernel_height": 2, "kernel_width": 2}
    steps = {"stride_height": 1, "stride_width": 1, "dilation_height": 1, "dilation_width": 1, "pad_top": 1}
    code = [
        *configured(**geometry, **steps, pitch=1, high_offset=160, lanes=3, taps=2, zero_point=5, plane_stride=30),
        ReadWeights(1, 4),
        Convolve(1, 2, 24, 2, wide=kind == "wide"),
        MatrixMultiply(2, 2, 24, 2, accumulate=True, wide=kind == "wide"),
        *shown(20, 2, True),
        *shown(23, 3, True),
    ]
    assert_literal(image_of(code, weights_of(np.random.default_rng(4), 4)), 4)


@st.composite
def geometries(draw):
    """Registers of a convolution whose rows all exist, and how many rows and passes it has."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    batch, (kh, kw), (sh, sw), (dh, dw) = draw(st.integers(1, 3)), draw(pair), draw(pair), draw(pair)
    height, width = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    top, left = draw(st.integers(-1, 3)), draw(st.integers(-1, 3))
    out_height, out_width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    first = draw(st.integers(0, out_height * out_width * batch - 1))
    rows = draw(st.integers(1, out_height * out_width * batch - first))
    taps = draw(st.integers(1, min(4, kh * kw)))
    lanes = draw(st.integers(1, ARRAY // taps))
    registers = {
        "pitch": draw(st.integers(1, 2)),
        "high_offset": 160,
        "lanes": lanes,
        "batch": batch,
        "in_height": height,
        "in_width": width,
        "out_width": out_width,
        "first_row": first,
        "kernel_height": kh,
        "kernel_width": kw,
        "stride_height": sh,
        "stride_width": sw,
        "dilation_height": dh,
        "dilation_width": dw,
        "pad_top": top,
        "pad_left": left,
        "taps": taps,
        "first_tap": draw(st.integers(0, kh * kw - 1)),
    }
    passes = -(-(kh * kw - registers["first_tap"]) // taps)
    return registers, rows, passes


@settings(max_examples=60, deadline=None)
@given(geometries(), st.sampled_from(["signed", "unsigned", "wide"]), st.integers(0, 2**32 - 1))
def test_convolutions_of_any_geometry(geometry, kind, seed):
    registers, rows, passes = geometry
    rng = np.random.default_rng(seed)
    low, high = {"signed": (-128, 128), "unsigned": (0, 256), "wide": (-32768, 32768)}[kind]
    code = [
        *configured(**registers, zero_point=int(rng.integers(low, high))),
        ReadWeights(1, passes),
        Convolve(1, 2, rows, passes, unsigned=kind == "unsigned", wide=kind == "wide"),
        *shown(rows, 2, True),
    ]
    assert_literal(image_of(code, weights_of(rng, passes)), seed)
