"""Programs whose instructions get in each other's way give the bits of the literal machine."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.isa.design import Design
from anytpu.chip.isa.instructions import Activate, MatrixMultiply, ReadHostMemory, ReadWeights, WriteHostMemory
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
