"""Layers: exact where sums leave float32's integers, at the size of the chip, in pieces, and in many runs at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import Design
from anytpu.chip.isa.instructions import Activate, Convolve, MatrixMultiply, ReadWeights
from anytpu.chip.machine import activation, products, run, workers
from anytpu.chip.machine.products import EXACT, exact_parts
from chip_witness import witness
from machine_samples import assert_literal, blocks, configured, image_of, literally, parameters

DEEP = Design(array=32, unified_buffer_bytes=32 * 256, accumulator_rows=64)


def dense(array: int, tiles: list[np.ndarray], bias: np.ndarray, design: Design, rows: int, **flags: bool) -> Image:
    """Return an image of one product of several planes, and its Activate of 16 bits."""
    pitch, planes = array // 32, len(tiles)
    code = [
        *configured(pitch=pitch, plane_stride=rows * pitch, high_offset=1, out_pitch=pitch, low=-32768, high=32767),
        *configured(out_high_offset=rows * pitch),
        ReadWeights(0, 1, "parameters"),
        ReadWeights(1, planes),
        MatrixMultiply(0, 0, rows, planes, **flags),
        Activate("scale", 0, design.buffer_units - 2 * rows * pitch, rows, wide_out=True),
    ]
    return image_of(code, blocks(parameters(bias, np.full(array, 2.0**-9)), *tiles), design)


@pytest.mark.parametrize("kind", ["signed", "unsigned", "wide"])
@pytest.mark.parametrize("far", [False, True])
def test_sums_and_biases_of_any_size(kind, far):
    flags = {} if kind == "signed" else {kind: True}
    bias = np.full(32, 2**31 - 9 if far else 1000)
    tiles = [np.full((32, 32), -128, np.int8)] * 40
    image = dense(32, tiles, bias, DEEP, 2, **flags)
    for fill in (-128, -1):
        content = np.full((1, 256, 1, 32), fill, np.int8)
        np.testing.assert_array_equal(run(image, {"whole": content})["whole"], literally(image, content))


def test_parts_are_within_the_bound_and_no_more_than_needed():
    ones = np.ones((3000, 2), np.int8)
    assert [(part.start, part.stop) for part in exact_parts(ones, 128)] == [(0, 3000)]
    assert len(exact_parts(-128 * ones[:1024], 128)) == 1
    assert len(exact_parts(-128 * ones[:1025], 128)) == 2
    assert len(exact_parts(127 * ones[:1032], 128)) == 1
    assert len(exact_parts(127 * ones[:1033], 128)) == 2
    assert len(exact_parts(-128 * ones[:514], 255)) == 1
    assert len(exact_parts(-128 * ones[:515], 255)) == 2
    for greatest in (128, 255):
        for part in exact_parts(-128 * ones, greatest):
            assert np.abs(part.matrix).sum(0).max() * greatest <= EXACT


def test_tiles_of_256_by_256():
    rng = np.random.default_rng(0)
    design = Design(unified_buffer_bytes=8 * 32 * 64)
    tiles = rng.integers(-128, 128, (2, 256, 256), np.int8)
    image = dense(256, list(tiles), rng.integers(-999, 999, 256), design, 3)
    content = rng.integers(-128, 128, (1, design.buffer_units, 1, 32), np.int8)
    fast = run(image, {"whole": content})["whole"]
    np.testing.assert_array_equal(fast, witness(image, {"whole": content})["whole"])
    rows = content.reshape(-1)[: 2 * 3 * 256].reshape(2, 3, 256).astype(np.int64)
    sums = rows[0] @ tiles[0] + rows[1] @ tiles[1] + np.frombuffer(image.weights[:1024], "<i4")
    expected = np.rint(sums.astype(np.float32) * np.float32(2.0**-9)).astype("<i2")
    low, high = fast.reshape(-1)[-2 * 3 * 256 :].reshape(2, 3, 256).view(np.uint8)
    np.testing.assert_array_equal(low + 256 * high.view(np.int8).astype(np.int16), expected)


@pytest.mark.parametrize("count", [1, 3])
def test_layers_cut_into_small_pieces(count, monkeypatch):
    monkeypatch.setattr(workers, "count", lambda: count)
    for name in ("MAX_ROWS", "MIN_ROWS"):
        monkeypatch.setattr(products, name, 3)
    monkeypatch.setattr(activation, "BLOCK_NUMBERS", 96)
    rng = np.random.default_rng(count)
    geometry = {"batch": 2, "in_height": 5, "in_width": 4, "out_width": 4, "kernel_height": 3, "kernel_width": 2}
    steps = {"stride_height": 1, "stride_width": 1, "dilation_height": 1, "dilation_width": 1, "pad_top": 1}
    code = [
        *configured(**geometry, **steps, pitch=1, lanes=11, taps=2, out_pitch=1, zero_point=9, low=-128, high=127),
        ReadWeights(0, 2, "parameters"),
        ReadWeights(2, 6),
        Convolve(0, 0, 40, 3),
        Activate("scale", 0, 60, 40),
        Convolve(0, 0, 40, 3),
        Activate("scale", 0, 120, 40),
    ]
    tiles = rng.integers(-128, 128, (6, 32, 32), np.int8)
    scale = parameters(rng.integers(-500, 500, 32), rng.uniform(1e-3, 0.01, 32))
    assert_literal(image_of(code, blocks(scale, scale, *tiles), DEEP), count)


def test_runs_at_the_same_time_do_not_meet():
    rng = np.random.default_rng(3)
    tiles = list(rng.integers(-128, 128, (4, 32, 32), np.int8))
    image = dense(32, tiles, rng.integers(-999, 999, 32), DEEP, 32)
    contents = rng.integers(-128, 128, (16, 1, 256, 1, 32), np.int8)
    alone = [run(image, {"whole": content})["whole"] for content in contents]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda content: run(image, {"whole": content})["whole"], contents))
    np.testing.assert_array_equal(alone, together)
