"""Programs whose instructions get in each other's way give the bits of the literal machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.assembly.assembler import assemble
from anytpu.chip.checking import check
from anytpu.chip.isa.design import Design
from anytpu.chip.isa.instructions import Activate, MatrixMultiply, ReadHostMemory, ReadWeights, WriteHostMemory
from anytpu.chip.machine import run
from machine_samples import assert_literal, blocks, configured, image_of, parameters

TINY = Design(array=4, unified_buffer_bytes=32 * 64, accumulator_rows=12)


def weights_of(seed: int, tiles: int = 4) -> np.ndarray:
    """Return two blocks of parameters, then tiles, one of 0 and one with a column of 0."""
    rng = np.random.default_rng(seed)
    things = rng.integers(-128, 128, (tiles, 4, 4), np.int8)
    things[1] = 0
    things[2, :, 3] = 0
    scale = [parameters(rng.integers(-500, 500, 4), rng.uniform(1e-3, 0.1, 4)) for _ in range(2)]
    return blocks(*scale, *things)


def setup() -> list:
    return configured(pitch=1, plane_stride=3, out_pitch=1, low=-128, high=127)


def pair(tile: int, source: int, accumulator: int, rows: int, target: int, repeat: int = 1) -> list:
    return [
        ReadWeights(2 + tile, repeat),
        ReadWeights(0, 1, "parameters"),
        MatrixMultiply(source, accumulator, rows, repeat),
        Activate("scale", accumulator, target, rows),
    ]


@st.composite
def programs(draw):
    """Instructions that get in each other's way as much as a dozen rows of accumulators and 64 of the buffer allow."""
    code: list = [*setup(), ReadWeights(2, 1), MatrixMultiply(0, 0, 12)]
    place, rows = st.integers(0, 40), st.integers(1, 6)
    for _ in range(draw(st.integers(1, 8))):
        kind, count = draw(st.sampled_from(["pair", "pair", "pair", "add", "scale", "copy", "in", "out"])), draw(rows)
        accumulator = draw(st.sampled_from([0, 3, 6]))
        if kind == "pair":
            code += pair(draw(st.integers(0, 2)), draw(place), accumulator, count, draw(place), draw(st.integers(1, 2)))
        elif kind == "add":
            code += [ReadWeights(3, 1), MatrixMultiply(draw(place), accumulator, count, accumulate=True)]
        elif kind == "scale":
            code += [ReadWeights(1, 1, "parameters"), Activate("scale", accumulator, draw(place), count)]
        elif kind in ("in", "out"):
            transfer = ReadHostMemory if kind == "in" else WriteHostMemory
            code += [transfer(32 * draw(place), draw(place), count)]
        else:
            code += [Activate("copy", draw(st.integers(0, 10)), draw(st.integers(20, 40)), count)]
    return code


@settings(max_examples=200, deadline=None)
@given(programs(), st.integers(0, 2**32 - 1))
def test_any_program_gives_the_same_bits(code, seed):
    assert_literal(image_of(code, weights_of(seed), TINY), seed)


OUTSIDE = """\
.name "s"
.batch 2
.host_bytes 128
.design array=8
.input "x", [1, 1, 3], host_address=0, scale=0.5
.output "y", [1, 1, 2], host_address=64, scale=0.25
.block 0
.int32 10, -6, 0, 0, 0, 0, 0, 0
.float32 0.5, 0.5, 0, 0, 0, 0, 0, 0
.block 1
.zero 64
read_weights.parameters 0, 1
read_weights.tile 1, 1
read_host_memory 0, 0, 2
set_configuration PITCH, 1
set_configuration LANES, 3
set_configuration TAPS, 1
set_configuration BATCH, 2
set_configuration IN_HEIGHT, 1
set_configuration IN_WIDTH, 1
set_configuration OUT_WIDTH, 1
set_configuration KERNEL_HEIGHT, 1
set_configuration KERNEL_WIDTH, 1
set_configuration STRIDE_HEIGHT, 1
set_configuration STRIDE_WIDTH, 1
set_configuration PAD_TOP, 5
sync matrix, read
{product}
set_configuration OUT_PITCH, 1
set_configuration LOW, 0
set_configuration HIGH, 127
sync activate, matrix
activate.scale source=0, target=8, rows=2
{pool}
sync write, activate
write_host_memory 64, 8, 2
halt
"""


@pytest.mark.parametrize("address", [0, 786_432, 16_777_215])
def test_a_window_that_reads_only_padding_may_lie_anywhere(address: int):
    parts = [
        (f"convolve address={address}, accumulator=0, rows=2", "", [5, 0, 5, 0]),
        (
            "matrix_multiply address=0, accumulator=0, rows=2",
            f"set_configuration ZERO_POINT, 0\nactivate.max source={address}, target=8, rows=2",
            [0, 0, 0, 0],
        ),
    ]
    for product, pool, expected in parts:
        image = assemble(OUTSIDE.format(product=product, pool=pool))
        check(image)
        assert run(image, {"x": np.zeros((2, 1, 1, 3), np.int8)})["y"].ravel().tolist() == expected
