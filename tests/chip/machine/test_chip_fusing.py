"""Layers in place of products and Activates: the same bits, whatever depends on whatever; layers where they belong."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.isa.design import Design
from anytpu.chip.isa.instructions import Activate, MatrixMultiply, ReadHostMemory, ReadWeights, WriteHostMemory
from anytpu.chip.machine import fusing
from anytpu.chip.machine.decoding import decode
from anytpu.chip.machine.fusing import LayerStep, fuse
from anytpu.chip.machine.steps import ActivateStep, ProductStep
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


def kinds(code: list) -> list[str]:
    """Return what is left of the products and Activates of a program, in order."""
    steps = fuse(decode(image_of([*setup(), *code], weights_of(0), TINY)), TINY)
    names = {ProductStep: "product", ActivateStep: "activate", LayerStep: "layer"}
    return [
        f"layer of {len(step.blocks)}" if isinstance(step, LayerStep) else names[type(step)]
        for step in steps
        if type(step) in names
    ]


def test_blocks_of_the_same_rows_are_one_layer():
    code = [*pair(0, 0, 0, 4, 20), *pair(1, 0, 4, 4, 24), *pair(2, 0, 0, 4, 28)]
    assert kinds(code) == ["layer of 3"]


def test_other_rows_are_another_layer_and_blocks_find_theirs():
    code = [*pair(0, 0, 0, 4, 20), *pair(0, 5, 4, 4, 24), *pair(1, 0, 0, 4, 28), *pair(1, 5, 4, 4, 32)]
    assert kinds(code) == ["layer of 2", "layer of 2"]


def test_the_next_rows_are_the_same_layer():
    code = [*pair(0, 0, 0, 4, 20), *pair(0, 4, 4, 4, 24), *pair(1, 0, 0, 4, 28), *pair(1, 4, 4, 4, 32)]
    assert kinds(code) == ["layer of 2"]
    code = [*pair(0, 0, 0, 4, 20), *pair(0, 4, 4, 2, 24), *pair(0, 6, 4, 3, 26), *pair(0, 9, 4, 3, 30)]
    assert kinds(code) == ["layer of 1", "layer of 1"]
    steps = fuse(decode(image_of([*setup(), *code], weights_of(0), TINY)), TINY)
    assert [(one.rows, one.blocks[0].activate.rows) for one in steps if isinstance(one, LayerStep)] == [(9, 9), (3, 3)]


def test_the_hosts_numbers_go_round_a_layer():
    one, other = pair(0, 0, 0, 4, 20), pair(1, 0, 4, 4, 24)
    assert kinds([*one, WriteHostMemory(0, 20, 4), ReadHostMemory(640, 40, 4), *other]) == ["layer of 2"]
    overwritten = [*one, WriteHostMemory(0, 24, 4), *other]
    assert kinds(overwritten) == ["layer of 1", "layer of 1"]
    changed_source = [*one, ReadHostMemory(640, 2, 4), *other]
    assert kinds(changed_source) == ["layer of 1", "layer of 1"]
    there_and_back = [*one, WriteHostMemory(0, 20, 4), ReadHostMemory(0, 40, 4), *other]
    assert kinds(there_and_back) == ["layer of 1", "layer of 1"]


def test_what_reads_a_result_comes_after_it():
    code = [*pair(0, 0, 0, 4, 20), *pair(1, 22, 4, 4, 30), *pair(1, 0, 4, 4, 40)]
    assert kinds(code) == ["layer of 1", "layer of 1", "layer of 1"]


def test_a_result_over_its_own_source_is_no_layer():
    assert kinds(pair(0, 10, 0, 4, 12)) == ["product", "activate"]


def test_sums_that_are_read_again_are_no_layer():
    again = [ReadWeights(0, 1, "parameters"), Activate("scale", 0, 40, 4)]
    assert kinds([*pair(0, 0, 0, 4, 20), *again]) == ["product", "activate", "activate"]


def test_more_products_than_are_joined(monkeypatch):
    monkeypatch.setattr(fusing, "MAX_DEPTH", 12)
    more = [ReadWeights(3, 1), MatrixMultiply(8, 0, 4, accumulate=True)]
    read, scale, product, activate = pair(0, 0, 0, 4, 20)
    assert kinds([read, scale, product, *more, *more, activate]) == ["layer of 1"]
    code = [*setup(), read, scale, product, *more, *more, ReadHostMemory(640, 8, 3), *more, activate]
    assert kinds(code) == ["product", "product", "activate"]
    assert_literal(image_of(code, weights_of(5), TINY), 5)


def test_products_that_follow_one_another_are_one():
    more = [ReadWeights(3, 1), MatrixMultiply(8, 0, 4, accumulate=True)]
    read, scale, product, activate = pair(0, 0, 0, 4, 20)
    assert kinds([read, scale, product, *more, activate]) == ["layer of 1"]
