import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytpu.errors import PlanError
from anytpu.planning.hlo.groups import Groups, groups_of


@pytest.mark.parametrize(
    ("written", "groups"),
    [
        ("{{0,1},{2,3}}", Groups(2, 2, (0, 1))),
        ("{{0,2,4,6}}", Groups(1, 4, (0, 2, 4, 6))),
        ("{}", Groups(1, 8, tuple(range(8)))),
        ("[8,1]<=[8]", Groups(8, 1, (0,))),
        ("[1,8]<=[8]", Groups(1, 8, tuple(range(8)))),
        ("[4,4]<=[4,4]T(1,0)", Groups(4, 4, (0, 4, 8, 12))),
        ("mesh['axis_0'=8] {'axis_0'}", Groups(1, 8, tuple(range(8)), ("axis_0",), (("axis_0", 8),))),
        ("mesh['a'=4,'b'=2] {'b'}", Groups(4, 2, (0, 1), ("b",), (("a", 4), ("b", 2)))),
        ("mesh['a'=4,'b'=2] {'a'}", Groups(2, 4, (0, 2, 4, 6), ("a",), (("a", 4), ("b", 2)))),
        (
            "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}",
            Groups(2, 4, (0, 2, 4, 6), ("b",), (("a", 2), ("b", 4))),
        ),
        ("mesh['a'=4,'b'=2], device_ids=([8]) {'b'}", Groups(4, 2, (0, 1), ("b",), (("a", 4), ("b", 2)))),
        ("mesh['a'=8] {'a':(2)4}", Groups(2, 4, (0, 1, 2, 3), ("a",), (("a", 8),))),
        ("mesh['a'=8] {'a':(1)2}", Groups(4, 2, (0, 4), ("a",), (("a", 8),))),
    ],
)
def test_all_ways_to_write_groups(written: str, groups: Groups):
    text = f"f32[8]{{0}} all-reduce(%x), channel_id=1, replica_groups={written}, use_global_device_ids=true"
    assert groups_of(text, 8) == groups


def test_without_groups_all_take_part():
    assert groups_of("f32[8]{0} collective-permute(%x), source_target_pairs={{0,1}}", 4) == Groups(1, 4, (0, 1, 2, 3))


@given(st.permutations([0, 1, 2]), st.tuples(*[st.sampled_from([1, 2, 4])] * 3), st.sampled_from([1, 2, 4]))
def test_a_turned_grid_is_what_numpy_makes_of_it(order: list[int], sides: tuple[int, int, int], size: int):
    total = int(np.prod(sides))
    if total % size:
        return
    written = f"[{total // size},{size}]<=[{','.join(map(str, sides))}]T({','.join(map(str, order))})"
    expected = np.arange(total).reshape(sides).transpose(order).reshape(total // size, size)[0]
    assert groups_of(f"replica_groups={written}, x=1", total).first == tuple(expected)


@pytest.mark.parametrize(
    "written", ["flattened_id", "[2,x]<=[8]", "mesh['a'=4], device_ids=(4,2) {'a'}"], ids=["word", "grid", "mesh"]
)
def test_groups_in_another_way(written: str):
    with pytest.raises(PlanError) as caught:
        groups_of(f"replica_groups={written}", 8)
    assert str(caught.value) == (
        f"the groups {f'replica_groups={written}'!r} of a collective in the compiler's text cannot be read; they "
        "should look like 'replica_groups={{0,1},{2,3}}' or 'replica_groups=[2,2]<=[4]'"
    )


def test_axes_of_a_mesh_over_device_numbers_in_another_order():
    text = "replica_groups=mesh['a'=4,'b'=1,'c'=16], device_ids=([16,4]T(1,0)) {'b','c'}"
    groups = groups_of(text, 64)
    assert (groups.count, groups.size, groups.axes) == (4, 16, ("b", "c"))
    assert groups.first == tuple(range(0, 64, 4))
