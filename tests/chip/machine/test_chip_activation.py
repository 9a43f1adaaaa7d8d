"""The activation unit: each operation gives what the text says, ties, clips, wraps and tables included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.isa.instructions import Activate, Convolve, MatrixMultiply, ReadWeights
from machine_samples import SMALL, assert_literal, blocks, configured, image_of, parameters

ARRAY = SMALL.array
WINDOW = {
    "batch": 2,
    "in_height": 4,
    "in_width": 3,
    "out_width": 3,
    "kernel_height": 3,
    "kernel_width": 2,
    "stride_height": 1,
    "stride_width": 2,
    "dilation_height": 1,
    "dilation_width": 1,
}


def scaled(rng, bias, multiplier, *, wide_out=False, keep=False, **registers) -> None:
    """Compare the activation of random sums with the text."""
    weights = blocks(
        rng.integers(-128, 128, (ARRAY, ARRAY), np.int8), parameters(bias, multiplier), parameters(-bias, multiplier)
    )
    code = [
        *configured(pitch=1, out_high_offset=90, **{"out_pitch": 1, "low": -128, "high": 127, **registers}),
        ReadWeights(0, 1),
        ReadWeights(1, 1 if keep else 2, "parameters"),
        MatrixMultiply(0, 0, 12),
        Activate("scale", 0, 200, 12, wide_out=wide_out),
        Activate("scale", 3, 300, 9, wide_out=wide_out, keep=keep),
    ]
    assert_literal(image_of(code, weights), int(rng.integers(2**32)))


@pytest.mark.parametrize("wide_out", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_scale(wide_out, keep):
    rng = np.random.default_rng(0)
    bias = rng.integers(-1000, 1000, ARRAY)
    scaled(rng, bias, rng.uniform(1e-4, 1e-1, ARRAY), wide_out=wide_out, keep=keep, out_zero_point=-7, low=-90)


def test_scale_rounds_ties_to_even():
    scaled(np.random.default_rng(1), np.arange(ARRAY), np.full(ARRAY, 2.0**-9), out_zero_point=3)
    scaled(np.random.default_rng(2), np.arange(ARRAY), np.full(ARRAY, 0.5), wide_out=True, low=-32768, high=32767)


def test_scale_adds_the_bias_within_32_bits():
    bias = np.array([2**31 - 1, -(2**31), 2**31 - 60000, 0] * 2)
    scaled(np.random.default_rng(3), bias, np.full(ARRAY, 2.0**-26))


def test_scale_by_what_leaves_float32_is_clipped():
    scaled(np.random.default_rng(4), np.arange(ARRAY), np.full(ARRAY, 3e38), low=-100, high=101)


def test_lanes_that_the_array_does_not_have_are_computed_as_0():
    scaled(np.random.default_rng(6), np.arange(ARRAY), np.full(ARRAY, 0.01), out_pitch=2, out_zero_point=11)


@pytest.mark.parametrize("lane", [0, 3, ARRAY - 1])
@pytest.mark.parametrize("wide_out", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_a_scale_of_some_lanes(lane, wide_out, keep):
    rng = np.random.default_rng(7)
    bias, multiplier = rng.integers(-1000, 1000, ARRAY), rng.uniform(1e-4, 1e-1, ARRAY)
    scaled(rng, bias, multiplier, wide_out=wide_out, keep=keep, source_lane=lane, out_pitch=3, out_units=1)


@pytest.mark.parametrize("out_units", [0, 1, 2, 3])
@pytest.mark.parametrize("operation", ["copy", "add", "max", "average"])
@pytest.mark.parametrize("wide", [False, True])
def test_a_part_of_each_row(out_units, operation, wide):
    registers = {**WINDOW, "pitch": 2, "second_pitch": 1, "second_rows": 3, "high_offset": 50, "out_high_offset": 60}
    far = 32767 if wide else 127
    registers |= {"second_high_offset": 20, "out_pitch": 3, "out_units": out_units, "low": -far, "high": far}
    registers |= {"scale": 0.25, "second_scale": 0.5, "out_scale": 0.75, "source_lane": 5}
    code = [*configured(**registers), Activate(operation, 10, 300, 11, second=150, wide=wide, wide_out=wide)]
    assert_literal(image_of(code, blocks()), 3)


@pytest.mark.parametrize("operation", ["copy", "add", "subtract", "multiply"])
@pytest.mark.parametrize(("wide", "wide_out"), [(False, False), (True, True), (False, True), (True, False)])
@pytest.mark.parametrize(("pitch", "second_pitch", "out_pitch"), [(1, 1, 1), (2, 1, 2), (1, 2, 2), (2, 2, 1)])
def test_number_by_number(operation, wide, wide_out, pitch, second_pitch, out_pitch):
    far = 32767 if wide_out else 127
    registers = {
        "pitch": pitch,
        "second_pitch": second_pitch,
        "out_pitch": out_pitch,
        "high_offset": 40,
        "second_high_offset": 50,
        "out_high_offset": 30,
        "second_rows": 5,
        "zero_point": -3,
        "second_zero_point": 7,
        "out_zero_point": 2,
        "scale": 0.031,
        "second_scale": 0.017,
        "out_scale": 0.043 if operation != "multiply" else 0.05,
        "low": -far + 20,
        "high": far,
    }
    code = [
        *configured(**registers),
        Activate(operation, 10, 400, 14, second=90, wide=wide, wide_out=wide_out),
        Activate(operation, 10, 200, 5, second=90, wide=wide, wide_out=wide_out),
    ]
    assert_literal(image_of(code, blocks()), 0)


@pytest.mark.parametrize("operation", ["copy", "add", "scale", "max"])
@pytest.mark.parametrize("wide", [False, True])
def test_tables(operation, wide):
    rng = np.random.default_rng(7)
    kind = np.int16 if wide else np.int8
    size = np.iinfo(kind)
    table = rng.integers(size.min, size.max + 1, size.max - size.min + 1, kind)
    scale = parameters(rng.integers(-9, 9, ARRAY), rng.uniform(1e-3, 1e-1, ARRAY))
    registers = {
        **WINDOW,
        **dict.fromkeys(("pitch", "second_pitch", "out_pitch"), 1),
        "high_offset": 60,
        "second_high_offset": 60,
        "out_high_offset": 60,
        "scale": 0.7,
        "second_scale": 0.9,
        "out_scale": 1.0,
        "second_rows": 99,
        "low": size.min,
        "high": size.max,
        "table": 5,
    }
    code = [
        *configured(**registers),
        ReadWeights(0, 1),
        *([ReadWeights(1, 1, "parameters")] if operation == "scale" else []),
        ReadWeights(2, 2, "table", 4, wide),
        MatrixMultiply(0, 0, 10),
        Activate(operation, 0, 400, 10, second=100, table=True, wide=wide and operation != "scale", wide_out=wide),
    ]
    tile = rng.integers(-128, 128, (ARRAY, ARRAY), np.int8)
    assert_literal(image_of(code, blocks(tile, scale, table[::-1].copy(), table)), 7)


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "average", "max"])
@pytest.mark.parametrize("wide", [False, True])
def test_scales_as_far_apart_as_they_may_be(operation, wide):
    for scale, second, out in [(2.0**100, 2.0**100, 2.0**-149), (2.0**-149, 2.0**100, 2.0**-126), (1.0, 0.5, 2.0**100)]:
        registers = {**WINDOW, **dict.fromkeys(("pitch", "second_pitch", "out_pitch"), 1), "zero_point": 3}
        registers |= {"scale": scale, "second_scale": second, "out_scale": out, "low": -100, "high": 101}
        registers |= {"high_offset": 60, "second_high_offset": 60, "second_rows": 99, "second_zero_point": -3}
        activate = Activate(operation, 0, 400, 10, second=100, wide=wide)
        assert_literal(image_of([*configured(**registers), activate], blocks()), 9)
    averages = configured(**{**registers, "scale": 2.0**60, "out_scale": 2.0**-40})
    assert_literal(image_of([*averages, Activate("average", 0, 400, 10, counted=True, wide=wide)], blocks()), 10)


@pytest.mark.parametrize("operation", ["copy", "add", "subtract", "multiply", "max", "average"])
@pytest.mark.parametrize("wide", [False, True])
def test_rows_that_end_with_the_last_unit_of_the_buffer(operation, wide):
    registers = {**WINDOW, "batch": 1, "in_height": 1, "in_width": 2, "out_width": 2, "kernel_height": 1}
    registers |= {"pitch": 4, "second_pitch": 3, "second_rows": 2, "out_pitch": 2, "low": -128, "high": 127}
    registers |= {"stride_width": 1, "scale": 0.25, "second_scale": 0.5, "out_scale": 0.25, "high_offset": 100}
    last = SMALL.buffer_units
    shift = 100 if wide else 0
    activate = Activate(operation, last - shift - 4 - 2, 300, 2, second=last - shift - 3 - 2, wide=wide)
    assert_literal(image_of([*configured(**registers, second_high_offset=100), activate], blocks()), 11)


def test_products_of_rows_that_end_with_the_last_unit_of_the_buffer():
    scale = parameters(np.zeros(ARRAY), np.full(ARRAY, 2.0**-6))
    tile = np.random.default_rng(12).integers(-128, 128, (ARRAY, ARRAY), np.int8)
    registers = {**WINDOW, "batch": 1, "in_height": 1, "in_width": 2, "out_width": 2, "kernel_height": 1}
    registers |= {"pitch": 4, "lanes": 3, "taps": 2, "stride_width": 1, "out_pitch": 1, "low": -128, "high": 127}
    code: list = [*configured(**registers), ReadWeights(0, 2, "parameters"), ReadWeights(2, 2)]
    for number, kind in enumerate((MatrixMultiply, Convolve)):
        code += [kind(SMALL.buffer_units - 5, 0, 2), Activate("scale", 0, 2 * number, 2)]
    assert_literal(image_of(code, blocks(scale, scale, tile, tile.T)), 12)


@st.composite
def pools(draw):
    """Registers of a pool, and how many rows it makes."""
    small = st.integers(1, 3)
    batch, out_width, out_height = draw(small), draw(small), draw(small)
    first = draw(st.integers(0, batch * out_width * out_height - 1))
    registers = {
        **{name: draw(small) for name in WINDOW},
        "batch": batch,
        "out_width": out_width,
        "first_row": first,
        "in_height": draw(st.integers(1, 5)),
        "pad_top": draw(st.integers(-1, 3)),
        "pad_left": draw(st.integers(-1, 3)),
        "pitch": draw(st.integers(1, 2)),
        "out_pitch": draw(st.integers(1, 2)),
        "high_offset": 150,
        "out_high_offset": 60,
        "zero_point": draw(st.integers(-128, 127)),
        "out_zero_point": draw(st.integers(-128, 127)),
        "scale": draw(st.sampled_from([0.5, 0.125, 0.0371])),
        "out_scale": draw(st.sampled_from([0.5, 1.0, 0.0917])),
        "low": draw(st.integers(-128, 0)),
        "high": draw(st.integers(0, 127)),
    }
    return registers, draw(st.integers(1, batch * out_width * out_height - first))


@settings(max_examples=80, deadline=None)
@given(pools(), st.sampled_from(["max", "average", "counted"]), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_pools_of_any_geometry(pool, operation, wide, wide_out, seed):
    registers, rows = pool
    counted = operation == "counted"
    operation = "average" if counted else operation
    activate = Activate(operation, 2, 380, rows, counted=counted, wide=wide, wide_out=wide_out)
    assert_literal(image_of([*configured(**registers), activate], blocks()), seed)
