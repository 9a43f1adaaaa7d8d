from __future__ import annotations

import dataclasses

import numpy as np

import chip_page_samples
from anytpu.chip.graph.nodes import Quantization
from anytpu.chip.image.image import Binding, Image, Tag
from anytpu.chip.isa.design import Design
from anytpu.chip.isa.instructions import DebugTag, Halt, MatrixMultiply, ReadHostMemory, ReadWeights, SetConfiguration
from anytpu.chip.isa.registers import Register
from anytpu.chip.page.first_tile import FirstTile, first_tile
from anytpu.chip.page.multiplication import scene, wave, wave_of, wave_scene


def test_the_corner_is_that_of_the_tile_and_the_sums_are_right():
    tile = chip_page_samples.tile()
    wave = wave_of(tile)
    assert (wave.weights == tile.weights[:8, :8]).all()
    # The first 16 rows are all alike; where there is something to see is later.
    assert wave.first_row >= 16
    assert (wave.numbers == tile.numbers[wave.first_row : wave.first_row + 8, :8]).all()
    assert wave.is_right and (wave.sums == wave.numbers @ wave.weights).all()
    assert len(wave.snapshots) == 8 + 8 + 8 + 8 - 2


def test_a_wrong_sum_is_said():
    wave = wave_of(chip_page_samples.tile())
    assert not dataclasses.replace(wave, expected=wave.expected + np.eye(8, dtype=np.int32)).is_right


def test_rows_of_the_tile_below_the_corner_are_said():
    tile = chip_page_samples.tile()
    assert [wave_scene(dataclasses.replace(tile, depth=depth))["lower"] for depth in (4, 8, 9, 256)] == [0, 0, 1, 248]
    assert wave_of(tile).sums.tolist() != (tile.numbers[wave_of(tile).first_row :][:8] @ tile.weights[:, :8]).tolist()
    for depth, said in (
        (8, "so the sums that leave the corner are those of this pass."),
        (256, "Those below the corner (248)"),
    ):
        page = dataclasses.replace(chip_page_samples.digits(), first_tile=dataclasses.replace(tile, depth=depth))
        assert said in str(wave(page, None))


def test_fewer_rows_and_a_smaller_array():
    tile = FirstTile("", np.arange(16, dtype=np.int8).reshape(4, 4), np.ones((1, 4), np.int32), 4, False)
    wave = wave_of(tile)
    assert wave.sums.tolist() == [[24, 28, 32, 36]]
    assert scene(wave)["results"][0][3] == {"sum": 36, "cycle": 4 + 4 + 4 + 1 - 2 - 1}


def test_what_the_script_reads_is_what_the_registers_held():
    wave = wave_of(chip_page_samples.tile())
    shown = scene(wave)
    assert [step["shifting"] for step in shown["steps"]] == [True] * 8 + [False] * 22
    assert shown["steps"][7]["weight"] == wave.weights.ravel().tolist()
    # At the end of the first cycle of the stream, only the first cell has a number.
    first = shown["steps"][8]
    assert first["row"] == [0] + [None] * 63
    assert first["sum"][0] == int(wave.numbers[0, 0]) * int(wave.weights[0, 0])


def program(layer: bool = True) -> Image:
    """Return a program of an array of 4: three rows that the host has, times a tile."""
    weights = np.zeros(2048, np.uint8)
    weights[:16] = np.arange(1, 17)
    start = (DebugTag(0),) if layer else ()
    return Image(
        "small",
        (
            *start,
            SetConfiguration(Register.PITCH, 1),
            ReadWeights(0, 1),
            ReadHostMemory(0, 0, 3),
            MatrixMultiply(0, 0, 3),
            Halt(),
        ),
        weights,
        batch=3,
        host_bytes=96,
        inputs=(Binding("x", (1, 1, 4), Quantization(0.5, 1), 0, (4,)),),
        tags=(Tag("dense/dot", "dense", "dense"),),
        design=Design(array=4),
    )


def test_the_first_tile_is_what_the_machine_would_multiply():
    found = first_tile(program(), None, {})
    assert found is not None
    assert found.weights.tolist() == np.arange(1, 17).reshape(4, 4).tolist()
    assert found.numbers.shape == (3, 4) and len(np.unique(found.numbers)) > 2
    assert (found.layer, found.is_example) == ("dense", False)
    unnamed = first_tile(program(layer=False), None, {})
    assert unnamed is not None and unnamed.layer == ""


def test_a_program_without_a_product_has_no_first_tile():
    image = dataclasses.replace(program(), instructions=(Halt(),))
    assert first_tile(image, None, {}) is None
