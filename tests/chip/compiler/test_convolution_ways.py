"""Taps one by one or side by side: which is chosen, what the listing says, and which tiles are made."""

from __future__ import annotations

import numpy as np
import pytest

from anytpu.chip.compiler import compile_image
from anytpu.chip.compiler.tiles import folded_bias, parameters_of, tiles_of
from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import TPU_V1, Design
from anytpu.chip.isa.instructions import Activate, ArrayInstruction, Convolve, MatrixMultiply, ReadWeights
from quantized_samples import SMALL, Sketch, run_exactly

SAME = ((1, 1), (1, 1))
NONE = ((0, 0), (0, 0))


def passes(image: Image) -> int:
    return sum(one.repeat for one in image.instructions if isinstance(one, ArrayInstruction))


def test_taps_side_by_side_are_chosen_where_they_take_fewer_passes():
    sketch = Sketch()
    network = sketch.network(sketch.convolution(sketch.input(12, 12, 3), 8, (7, 7), (2, 2), ((3, 3), (3, 3))))
    image = run_exactly(network, 2, TPU_V1)
    assert passes(image) == 1
    assert image.tags[0].note == (
        "packed: 1 tile of weights, 1.8 % of its cells used (native: 49 tiles of weights, 0.0 % of their cells used)"
    )


def test_one_way_where_both_are_the_same():
    sketch = Sketch()
    image = compile_image(sketch.network(sketch.convolution(sketch.input(4, 4, 200), 256, (3, 3))))
    assert image.tags[0].note == "native: 9 tiles of weights, 78.1 % of their cells used"
    assert image.tags[0].macs == 9 * 200 * 256 * 4


@pytest.mark.parametrize(
    ("kernel", "padding", "groups", "kind"),
    [
        ((3, 3), NONE, 1, "dense"),
        ((3, 3), NONE, 2, "convolution"),
        ((2, 2), NONE, 1, "convolution"),
        ((3, 3), SAME, 1, "convolution"),
    ],
)
def test_what_sees_the_whole_picture_is_dense(kernel, padding, groups: int, kind: str):
    sketch = Sketch()
    x = sketch.input(3, 3, 8)
    image = compile_image(sketch.network(sketch.convolution(x, 8, kernel, (1, 1), padding, groups)))
    assert image.tags[0].kind == kind


def test_a_dense_layer_takes_planes_in_one_instruction():
    sketch = Sketch()
    image = compile_image(sketch.network(sketch.convolution(sketch.input(1, 1, 768), 512)), batch=20)
    products = [one for one in image.instructions if isinstance(one, MatrixMultiply)]
    assert [(one.repeat, one.rows, one.accumulator) for one in products] == [(3, 20, 0), (3, 20, 20)]
    assert image.tags[0].kind == "dense"


def test_the_positions_of_a_flatten_are_taps():
    sketch = Sketch()
    x = sketch.convolution(sketch.input(4, 4, 3), 64)
    network = sketch.network(sketch.convolution(sketch.reshape(x, 1, 1, 1024), 10))
    image = run_exactly(network, 5, TPU_V1)
    dense = [one for one in image.instructions if isinstance(one, Convolve)]
    assert [one.repeat for one in dense] == [4]  # 16 positions, 4 of them side by side.


def test_tiles_of_groups_that_do_not_meet_are_left_out():
    sketch = Sketch()
    x = sketch.input(6, 6, 32)
    network = sketch.network(sketch.convolution(x, 32, (3, 3), padding=SAME, groups=32))
    native = run_exactly(network, 1, SMALL)
    assert passes(native) == 4 * 9 * 2  # 4 planes, 9 taps, 2 parts of the rows; not 16 pairs of planes.


def test_a_single_tile_stays_in_the_array_for_all_rows():
    sketch = Sketch()
    x = sketch.input(100, 100, 16)
    image = compile_image(sketch.network(sketch.convolution(x, 16)))
    tiles = [one.count for one in image.instructions if isinstance(one, ReadWeights) and one.kind == "tile"]
    products = [one for one in image.instructions if isinstance(one, MatrixMultiply)]
    assert tiles == [1] and [one.keep for one in products] == [False, True, True, True, True]
    scales = [one for one in image.instructions if isinstance(one, Activate)]
    assert [one.keep for one in scales] == [False, True, True, True, True]


@pytest.mark.parametrize("design", [Design(array=8, accumulator_rows=2), Design(array=8, accumulator_rows=1)])
def test_few_accumulators(design: Design):
    sketch = Sketch()
    x = sketch.input(2, 2, 9)
    made = sketch.convolution(x, 9, (2, 2), padding=SAME)
    run_exactly(sketch.network(sketch.elementwise("add", made, made)), 1, design)


def test_tiles_by_hand():
    weights = np.arange(2 * 1 * 2 * 3, dtype=np.int8).reshape(2, 1, 2, 3)
    rows = np.array([[0, 1, -1, 2], [3, -1, -1, -1]])  # tap * 2 + channel
    tiles = tiles_of(weights, 1, rows, np.array([-1, 0, 2, -1]))
    flat = weights.reshape(4, 3)
    wanted = np.zeros((2, 4, 4), np.int8)
    wanted[0, [0, 1, 3], 1], wanted[0, [0, 1, 3], 2] = flat[[0, 1, 2], 0], flat[[0, 1, 2], 2]
    wanted[1, 0, 1], wanted[1, 0, 2] = flat[3, 0], flat[3, 2]
    np.testing.assert_array_equal(tiles, wanted)


def test_tiles_of_groups_by_hand():
    weights = np.arange(1, 5, dtype=np.int8).reshape(1, 1, 1, 4)  # 2 groups of 1 channel, 2 outputs each
    tiles = tiles_of(weights, 2, np.array([[0, 1]]), np.array([0, 1, 2, 3]))
    np.testing.assert_array_equal(tiles[0], [[1, 2, 0, 0], [0, 0, 3, 4]])


def test_the_zero_point_is_folded_into_the_bias_and_wraps():
    weights = np.full((1, 1, 1000, 1), 127, np.int8)
    folded = folded_bias(weights, np.array([2**31 - 1], np.int32), -128)
    assert folded.dtype == np.int32 and folded[0] == (2**31 - 1 + 128 * 127_000) - 2**32


def test_parameters_are_biases_then_multipliers():
    block = parameters_of(np.array([1, -2], np.int32), np.array([0.5, 2], np.float32), np.array([1, -1, 0, -1]))
    np.testing.assert_array_equal(block[0, :16].view("<i4"), [-2, 0, 1, 0])
    np.testing.assert_array_equal(block[0, 16:].view("<f4"), [2, 0, 0.5, 0])
