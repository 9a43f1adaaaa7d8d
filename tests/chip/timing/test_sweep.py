import pytest

from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import TPU_V1, Design
from anytpu.chip.isa.instructions import MatrixMultiply, ReadWeights
from anytpu.chip.timing import sweep, time
from anytpu.errors import SettingError
from timing_samples import dense, image_of

IMAGE = image_of(dense(200, [30, 30], 100), batch=200)


def tiles_of(rows: int, columns: int):
    """Return what makes the program of one matrix for a chip: as many tiles as it takes there."""

    def compiled(design: Design) -> Image:
        tiles = -(-rows // design.array) * -(-columns // design.array)
        return image_of([ReadWeights(0, tiles), MatrixMultiply(0, 0, 96, repeat=tiles)], design)

    return compiled


def test_every_combination_the_last_knob_turning_fastest():
    timings = sweep(IMAGE, {"clock_hz": [700e6, 1.4e9], "weight_bytes_per_s": [34e9, 68e9]})
    assert [(t.design.clock_hz, t.design.weight_bytes_per_s) for t in timings] == [
        (700e6, 34e9),
        (700e6, 68e9),
        (1.4e9, 34e9),
        (1.4e9, 68e9),
    ]
    for t in timings:
        assert t == time(IMAGE, design=t.design)


def test_memory_sets_the_pace_of_a_perceptron_and_the_clock_does_not():
    slow, fast = sweep(IMAGE, {"weight_bytes_per_s": [34e9, 4 * 34e9]})
    assert 2.5 < slow.time_s / fast.time_s < 4
    slow, fast = sweep(IMAGE, {"clock_hz": [700e6, 2.8e9]})
    assert 1 < slow.time_s / fast.time_s < 1.05


def test_clock_and_memory_of_products_with_many_rows():
    image = image_of([ReadWeights(0, 40), MatrixMultiply(0, 0, 2888, repeat=40)])
    slow, fast = sweep(image, {"clock_hz": [700e6, 2.8e9]}, back_to_back=True)
    # Four times the clock, until fetches take as long as rows: 2888 cycles of 5397.
    assert slow.time_s / fast.time_s == pytest.approx(4 * 2888 / (4 * TPU_V1.tile_cycles), rel=1e-3)
    slow, fast = sweep(image, {"weight_bytes_per_s": [34e9, 4 * 34e9]}, back_to_back=True)
    assert slow.time_s == fast.time_s


def test_a_larger_array_takes_fewer_and_longer_steps():
    """Section 7: 600 x 600 takes 9 steps and 18 us on 256 x 256, 4 steps and 32 us on 512 x 512."""
    small, large = sweep(tiles_of(600, 600), {"array": [256, 512]}, back_to_back=True)
    assert [t.weight_bytes // t.design.tile_bytes for t in (small, large)] == [9, 4]
    assert small.time_s == pytest.approx(18e-6, rel=0.05)
    assert large.time_s == pytest.approx(32e-6, rel=0.05)


def test_a_compiler_is_called_once_for_each_chip_that_needs_a_program_of_its_own():
    designs: list[Design] = []

    def compiled(design: Design) -> Image:
        designs.append(design)
        return tiles_of(600, 600)(design)

    timings = sweep(compiled, {"array": [128, 256], "clock_hz": [700e6, 1e9, 2e9]})
    assert [design.array for design in designs] == [128, 256]
    assert len(timings) == 6


def test_depth_of_the_fifo_helps_when_the_array_waits_for_data():
    shallow, deep = sweep(IMAGE, {"weight_fifo_tiles": [1, 8]})
    assert deep.cycles < shallow.cycles
    assert sweep(IMAGE, {}, design=deep.design) == [deep]


KNOBS = (
    "array, clock_hz, unified_buffer_bytes, accumulator_rows, weight_fifo_tiles, weight_memory_bytes, "
    "weight_bytes_per_s, host_bytes_per_s, dies"
)
FAULTS = [
    ({"memory": [1.0]}, f"a chip has no parameter 'memory'; the parameters are {KNOBS}."),
    ({"clock_hz": []}, "clock_hz is to be turned, but no values were given: give at least one."),
    ({"array": [512]},
     "'sample' was compiled for one array: to turn it give a function that compiles the program for a chip, not an "
     "image."),
    ({"clock_hz": [-1.0]}, "clock_hz of a chip must be a number from 0.001 to 1e18, not -1.0."),
    ({"weight_fifo_tiles": [2.5]}, "weight_fifo_tiles of a chip must be an integer from 1 to 1,048,576, not 2.5."),
    ({"host_bytes_per_s": [float("inf")]}, "host_bytes_per_s of a chip must be a number from 0.001 to 1e18, not inf."),
    (
        {"weight_bytes_per_s": ["34 GB/s"]},
        "weight_bytes_per_s of a chip must be a number from 0.001 to 1e18, not '34 GB/s'.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("knobs", "message"), FAULTS)
def test_knobs_that_cannot_be_turned(knobs: dict[str, list], message: str):
    with pytest.raises(SettingError) as error:
        sweep(IMAGE, knobs)
    assert str(error.value) == message
