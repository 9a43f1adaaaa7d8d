"""What rows that do not fill the tiles of the memory take, from the layouts of a compiled step."""

import pytest
from tests.planning.timing.modules import computation, module_of

from anytpu.planning.memory.batch_padding import padding_of_rows
from anytpu.planning.records import BatchPadding


def test_rows_along_the_second_fastest_axis_are_padded_to_eight():
    module = module_of(
        """%a = f32[12,256]{1,0:T(8,128)} parameter(0)
        ROOT %b = f32[12,256]{1,0:T(8,128)} negate(%a)"""
    )
    assert padding_of_rows(module, 12) == BatchPadding(12, 8, 0.25, "f32[12,256]")


def test_rows_along_the_fastest_axis_are_padded_to_the_lanes():
    module = module_of(
        """%a = f32[256,96]{1,0:T(8,128)} parameter(0)
        ROOT %b = f32[256,96]{1,0:T(8,128)} negate(%a)"""
    )
    assert padding_of_rows(module, 96) == BatchPadding(96, 128, 0.25, "f32[256,96]")


def test_rows_of_a_transformer_lie_along_neither():
    module = module_of(
        """%a = bf16[12,512,768]{2,1,0:T(8,128)(2,1)} parameter(0)
        ROOT %b = bf16[12,512,768]{2,1,0:T(8,128)(2,1)} negate(%a)"""
    )
    assert padding_of_rows(module, 12) is None


def test_tiles_that_the_compiler_made_smaller_lose_nothing():
    module = module_of(
        """%a = f32[4,256]{1,0:T(4,128)} parameter(0)
        ROOT %b = f32[4,256]{1,0:T(4,128)} negate(%a)"""
    )
    assert padding_of_rows(module, 4) is None


def test_a_weight_as_long_as_the_rows_is_no_batch():
    module = module_of(
        """%a = f32[12,256]{1,0:T(8,128)} parameter(0)
        ROOT %b = f32[12,256]{1,0:T(8,128)} negate(%a)"""
    )
    assert padding_of_rows(module, 12, [(12, 256)]) is None


def test_an_operation_in_a_loop_counts_as_often_as_it_runs():
    condition = computation(
        "condition",
        """%p = (s32[], f32[12,256]{1,0:T(8,128)}) parameter(0)
        %i = s32[] get-tuple-element(%p), index=0
        %n = s32[] constant(9)
        ROOT %less = pred[] compare(%i, %n), direction=LT""",
    )
    body = computation(
        "body",
        """%p = (s32[], f32[12,256]{1,0:T(8,128)}) parameter(0)
        %i = s32[] get-tuple-element(%p), index=0
        %one = s32[] constant(1)
        %next = s32[] add(%i, %one)
        %x = f32[12,256]{1,0:T(8,128)} get-tuple-element(%p), index=1
        %y = f32[12,256]{1,0:T(8,128)} negate(%x)
        ROOT %both = (s32[], f32[12,256]{1,0:T(8,128)}) tuple(%next, %y)""",
    )
    module = module_of(
        """%a = f32[12,256]{1,0:T(8,128)} parameter(0)
        %zero = s32[] constant(0)
        %in = (s32[], f32[12,256]{1,0:T(8,128)}) tuple(%zero, %a)
        %loop = (s32[], f32[12,256]{1,0:T(8,128)}) while(%in), condition=%condition, body=%body
        %x = f32[12,256]{1,0:T(8,128)} get-tuple-element(%loop), index=1
        %w = f32[16,256]{1,0:T(8,128)} parameter(1)
        ROOT %b = f32[16,256]{1,0:T(8,128)} negate(%w)""",
        condition,
        body,
    )
    # 9 x 2 arrays with a quarter of padding, and 2 without.
    assert padding_of_rows(module, 12).share == pytest.approx(0.25 * 18 / 20, rel=0.01)
