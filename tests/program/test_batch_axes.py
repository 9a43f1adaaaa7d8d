"""The axis of the batch along which examples lie."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from anytpu.errors import ProgramError
from anytpu.program import Layout, of

WHOLE = Layout(None)
HWCN, LABELS = (24, 24, 3, 64), (64,)


def spec(shape: tuple[int, ...], *parts: Any, mesh: AbstractMesh | None = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        shape, "float32", sharding=mesh and NamedSharding(mesh, PartitionSpec(*parts)) if parts else None
    )


def made(*batch: jax.ShapeDtypeStruct, **settings: Any) -> Any:
    return of(lambda state, batch: (state, {}), ((), batch), **settings)


def over(axes: dict[str, int], *leaves: tuple[Any, ...], **settings: Any) -> Any:
    """Return a program of leaves, each a shape and the parts of its sharding over a mesh."""
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes))
    return made(*(spec(shape, *parts, mesh=mesh) for shape, *parts in leaves), **settings)


@pytest.mark.parametrize(
    ("axes", "leaves", "layout", "rows"),
    [
        ({"data": 8}, [(HWCN, None, None, None, "data"), (LABELS, "data")], [3, 0], 64),
        ({"data": 8}, [(HWCN, None, None, None, "data"), (LABELS,)], [3, 0], 64),  # by its size
        ({"data": 4, "model": 2}, [((16, 32), "data", "model")], [0], 16),
        ({"dp": 4, "seq": 2}, [((16, 32), "seq", "dp")], [1], 32),
        ({"data": 2, "expert": 4}, [((16, 32), ("data", "expert"))], [0], 16),
        ({"data": 8}, [((1, 64, 512), None, "data")], [1], 64),
        ({"model": 8}, [(LABELS,), ((64, 16), None, "model")], [0, 0], 64),  # nothing splits examples
        ({"data": 2, "fsdp": 2}, [((16, 32), ("data", "fsdp")), ((16,), ("data", "fsdp"))], [0, 0], 16),
        ({"data": 1}, [(HWCN, None, None, None, "data"), (LABELS, "data")], [3, 0], 64),
        ({"data": 1, "model": 8}, [((16, 32), "data", "model")], [0], 16),
    ],
)
def test_the_axis_that_a_data_axis_splits(axes, leaves, layout, rows):
    program = over(axes, *leaves)
    assert [leaf_layout.axis for leaf_layout in program.layout] == layout
    assert (program.rows, [note for note in program.notes if "examples a step" in note]) == (rows, [])


@pytest.mark.parametrize("name", ["expert", "heads", "spatial", "seq_len", "tensor_parallel", "stage", "x"])
def test_an_axis_of_a_name_that_says_nothing(name):
    def notes(*leaves: tuple[Any, ...], **settings: Any) -> tuple[int, tuple[str, ...]]:
        program = over({name: 4}, *leaves, **settings)
        return program.rows, program.notes

    inside = (
        f"If examples are along axis 1 of '0', which is split over {name!r}, say so with batch_axis.",
        "examples a step: axis 0 of the batch, as no sharding or batch_axis says another.",
    )
    assert notes(((16, 512, 64), None, name)) == (16, (f"16 {inside[1]} {inside[0]}",))
    assert notes(((16, 512, 64), None, name), ((16,),)) == (16, (f"16 {inside[1]} {inside[0]}",))
    assert notes(((16, 512, 64), None, name), batch_size=32) == (32, (f"32 {inside[1]} {inside[0]}",))
    assert notes(((16, 512, 64), None, name), batch_axis=1) == (512, ())
    assert notes(((16, 512, 64), name)) == (
        16,
        (
            f"16 examples a step: axis 0 of '0', which is split over {name!r}. If examples are along another axis, say "
            "so with batch_axis.",
        ),
    )
    assert notes((HWCN, None, None, None, name), (LABELS, name))[0] == 64


def test_an_axis_of_unknown_name_beside_one_that_splits_examples_inside():
    program = over({"x": 4, "seq": 2}, ((16, 32), "seq", "x"))
    assert (program.rows, program.notes) == (
        32,
        (
            "32 examples a step: axis 1 of '0', which is split over 'x'. If examples are along another axis, say so "
            "with batch_axis.",
        ),
    )


def test_axis_0_split_over_what_splits_examples_inside():
    assert over({"seq": 2}, ((16, 32), "seq"), ((16,), "seq")).notes == (
        "16 examples a step: axis 0 of the batch, as no sharding or batch_axis says another. It is split over 'seq', "
        "which splits dimensions inside an example by its name. If examples are along another axis, "
        "say so with batch_axis.",
    )


def test_micro_batches_that_may_be_stacked():
    stacked = (
        "64 examples a step: axis 1 of '0', which is split over 'data'. If axis 0 counts 16 micro-batches, a step "
        "takes 16 times as many examples; if it does not, name the axis with batch_axis."
    )
    leaves = ((16, 64, 512), None, "data"), ((16, 64), None, "data")
    assert over({"data": 8}, leaves[0]).notes == (stacked,)
    assert over({"data": 8}, *leaves).notes == (stacked,)
    assert over({"data": 8}, *leaves, batch_axis=1).notes == ()
    assert over({"data": 8}, leaves[0], ((32, 64), None, "data")).notes == ()


def test_other_rows_along_the_axis_of_the_layout():
    program = over({"data": 8}, (HWCN, None, None, None, "data"), (LABELS, "data"), batch_size=1024)
    assert [leaf.shape for leaf in program.batch] == [(24, 24, 3, 1024), (1024,)]
    assert program.notes == ()


def test_two_axes_that_may_be_that_of_the_examples():
    assert over({"x": 4, "y": 2}, ((16, 32), "x", "y")).notes == (
        "16 examples a step: axis 0 of '0', which is split over 'x'. If examples are along the axis that is split over "
        "'y', say so with batch_axis.",
    )


def test_an_axis_that_is_assumed_is_told():
    assert made(spec((16, 32))).notes == (
        "16 examples a step: axis 0 of the batch, as no sharding or batch_axis says another.",
    )
    assert made(spec((16, 32)), batch_size=128).notes == (
        "128 examples a step: axis 0 of the batch, as no sharding or batch_axis says another.",
    )
    program = made(spec(HWCN), spec(LABELS))
    assert (program.rows, program.layout) == (24, (Layout(0), WHOLE))
    assert program.notes == (
        "24 examples a step: axis 0 of '0', as no sharding or batch_axis says another. Axis 0 of '1' has another size, "
        "so each device holds the whole of it.",
    )


@pytest.mark.parametrize("shapes", [[(16, 32), (16,)], [(16,), (16, 3, 3), ()], [(16,)], [()], []])
def test_shapes_that_allow_no_other_axis(shapes):
    assert made(*map(spec, shapes)).notes == ()


def test_a_leaf_of_rank_1_does_not_silence_the_others():
    assumed = "examples a step: axis 0 of {}, as no sharding or batch_axis says another."
    held = " Axis 0 of {} has another size, so each device holds the whole of it."
    inputs, lengths, positions = spec((128, 1024, 512)), spec((1024,)), spec((128,))
    assert made(inputs, lengths, positions).notes == (f"128 {assumed.format(repr('0'))}{held.format(repr('1'))}",)
    assert made(spec((16,)), spec((16, 3, 3)), spec((5,))).notes == (
        f"16 {assumed.format(repr('0'))}{held.format(repr('2'))}",
    )
    square = (224, 224, 3, 224)
    assert made(spec(square), spec((224,))).notes == (f"224 {assumed.format('the batch')}",)
    # The sentence is on the shapes that were given, and tells the rows that they become.
    assert made(spec(square), spec((224,)), batch_size=64).notes == (f"64 {assumed.format('the batch')}",)
    assert made(spec((64, 224)), spec((64,)), batch_size=224).notes == ()


@pytest.mark.parametrize(
    ("batch_axis", "layout"),
    [((3, 0), (3, 0)), (-1, (3, 0)), (3, (3, 0)), ((-1, None), (3, None)), ((0, None), (0, None))],
)
def test_the_users_axis(batch_axis, layout):
    program = made(spec(HWCN), spec(LABELS), batch_axis=batch_axis)
    assert program.layout == tuple(map(Layout, layout))
    assert (program.rows, program.notes) == (HWCN[layout[0]], ())
    assert made(spec(HWCN), spec(LABELS), batch_axis=batch_axis, batch_size=128).rows == 128


def test_the_users_axis_goes_before_the_sharding():
    assert over({"x": 4, "y": 2}, ((16, 32), "x", "y"), batch_axis=1).rows == 32


@pytest.mark.parametrize(
    ("batch_axis", "says"),
    [
        (7, "batch_axis=7 names no axis of the batch of {}: '0' has the shape (24, 24, 3, 64), '1' has the shape "
            "(64,)."),
        ((3, 1), "batch_axis names the axis 1 of '1' in the batch of {}, whose shape is (64,)."),
        ("rows", "batch_axis names the axis 'rows' of '0' in the batch of {}, whose shape is (24, 24, 3, 64)."),
        ((2, 0), "batch_axis=(2, 0) must name axes of one size in the batch of {}: '0' 3, '1' 64."),
        ((None, None), "batch_axis=(None, None) must name axes of one size in the batch of {}: no leaf has one."),
    ],
)  # fmt: skip
def test_an_axis_that_does_not_fit(batch_axis, says):
    with pytest.raises(ProgramError) as raised:
        made(spec(HWCN), spec(LABELS), batch_axis=batch_axis)
    assert str(raised.value) == says.format("'<lambda>/train'")


def test_axes_of_another_tree():
    with pytest.raises(ProgramError) as raised:
        made(spec(HWCN), spec(LABELS), batch_axis=(1, 2, 3))
    said = "batch_axis must be one axis, or a tree of them like the batch of '<lambda>/train', not (1, 2, 3): "
    assert str(raised.value).startswith(said)


def test_who_has_its_axis():
    program = made(spec(HWCN))
    with pytest.raises(ProgramError) as raised:
        of(program, batch_axis=3)
    assert str(raised.value) == (
        "The program '<lambda>/train' defines the axes of its examples, and cannot be changed to "
        "batch_axis=3. Give the function instead."
    )
