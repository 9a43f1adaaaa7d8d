import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytpu.errors import PlanError
from anytpu.planning.hlo.shapes import bits_of, padded_count, shapes_of
from anytpu.planning.records.quoting import quoted


@pytest.mark.parametrize(
    ("text", "size_bytes", "padded_bytes"),
    [
        ("f32[128,10]{0,1:T(8,128)}", 5120, 128 * 16 * 4),
        ("f32[128,10]{1,0:T(8,128)}", 5120, 128 * 128 * 4),
        ("bf16[30,200]{1,0:T(8,128)(2,1)}", 12000, 32 * 256 * 2),
        ("bf16[1,200]{1,0:T(1,128)(2,1)}", 400, 2 * 256 * 2),
        ("pred[5,128]{1,0:T(8,128)(4,1)}", 640, 8 * 128),
        ("s4[16,128]{1,0:T(8,128)(8,1)}", 1024, 1024),
        ("u4[3]{0}", 2, 2),
        ("f32[]{:T(128)}", 4, 512),
        ("f32[]", 4, 4),
        ("f32[300]{0:T(256)}", 1200, 2048),
        ("bf16[300]{0:T(256)(128)(2,1)}", 600, 1024),
        ("f32[128,28,28,1]{0,3,2,1:T(1,128)}", 401408, 401408),
        ("f32[128,28,28,1]{3,2,1,0:T(8,128)}", 401408, 128 * 28 * 32 * 128 * 4),
        ("f32[0,4]{1,0:T(8,128)}", 0, 0),
        ("f32[<=8,128]{1,0:T(8,128)}", 4096, 4096),
        ("token[]", 0, 0),
        ("f8e4m3fn[32,128]{1,0:T(8,128)(4,1)}", 4096, 4096),
        ("c64[2]{0}", 16, 16),
        ("f32[8,128]{1,0:T(*,128)}", 4096, 4096),
        ("f32[8,128]{1,0:T()}", 4096, 4096),
    ],
)
def test_bytes_with_and_without_padding(text: str, size_bytes: int, padded_bytes: int):
    (shape,) = shapes_of(text)
    assert (shape.bytes, shape.padded_bytes) == (size_bytes, padded_bytes)


def test_all_parts_of_a_layout():
    (shape,) = shapes_of("bf16[2,30,200]{2,0,1:T(8,128)(2,1)S(1)}")
    assert (shape.dtype, shape.dims, shape.minor_to_major) == ("bf16", (2, 30, 200), (2, 0, 1))
    assert (shape.tiles, shape.memory_space, str(shape)) == (((8, 128), (2, 1)), 1, "bf16[2,30,200]")


def test_without_a_layout_the_last_dimension_is_the_fastest():
    assert shapes_of("f32[2,3]")[0].minor_to_major == (1, 0)


def test_a_tuple_is_flattened():
    shapes = shapes_of("((bf16[4]{0}), bf16[2,2]{1,0:T(8,128)S(1)}, /*index=2*/s32[]{:S(2)})")
    assert [(str(shape), shape.memory_space) for shape in shapes] == [("bf16[4]", 0), ("bf16[2,2]", 1), ("s32[]", 2)]
    assert shapes_of("()") == ()


def test_what_is_no_shape():
    with pytest.raises(PlanError) as caught:
        shapes_of("nonsense")
    assert str(caught.value) == (
        "'nonsense' in the compiler's text is not the shape of an array, such as 'f32[8,128]{1,0}'"
    )


@pytest.mark.parametrize(
    "layout",
    [
        "T(8*128)",
        "T(*1)",
        "T(1*)",
        "T(**)",
        "T(8,128)(2*1)",
        "T(8,128)(2,-1)",
        "T(8,,128)",
        "T(,128)",
        "T(8,)",
        "T(8,128",
        "T(8*128)T(8,128)",
        "T(0,128)",
        f"T({'9' * 19})",
        f"T({'9' * 5000})",
        f"T(8,128)S({'9' * 5000})",
    ],
)
def test_a_tile_that_is_none(layout: str):
    text = f"f32[8,128]{{1,0:{layout}}}"
    with pytest.raises(PlanError) as caught:
        shapes_of(text)
    assert str(caught.value) == (
        f"{quoted(text)} in the compiler's text is not the shape of an array, such as 'f32[8,128]{{1,0}}'"
    )


def test_what_is_no_type():
    with pytest.raises(PlanError) as caught:
        bits_of("quaternion")
    assert str(caught.value) == "'quaternion' in the compiler's text is not a type of numbers, such as 'f32' or 'bf16'"


@given(st.lists(st.integers(0, 40), max_size=4), st.integers(1, 16), st.integers(1, 16))
def test_one_tile_rounds_the_last_dimensions_up(sizes: list[int], rows: int, columns: int):
    whole = [1] * (2 - len(sizes)) + sizes
    expected = math.prod([*whole[:-2], -(-whole[-2] // rows) * rows, -(-whole[-1] // columns) * columns])
    assert padded_count(tuple(sizes), ((rows, columns),)) == expected


@given(st.lists(st.integers(1, 40), max_size=3), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_packed_rows_need_full_packs(sizes: list[int], rows: int, packed: int):
    plain = padded_count(tuple(sizes), ((rows, 128),))
    assert padded_count(tuple(sizes), ((rows, 128), (packed, 1))) == plain // rows * max(rows, packed)
