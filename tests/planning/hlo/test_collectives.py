import pytest

from anytpu.errors import PlanError
from anytpu.planning import hlo
from anytpu.planning.hlo import Collective, collective_of
from anytpu.planning.hlo.collectives import group_of
from planning.hlo.saved import module

KIB, MIB = 1024, 1024**2


def collectives(name: str) -> dict[str, Collective]:
    read = module(name)
    found = {instruction.name: collective_of(instruction) for instruction in read.entry.instructions.values()}
    return {name: collective for name, collective in found.items() if collective}


def test_kinds_bytes_and_groups():
    found = collectives("collectives_v4")
    summed = found["psum_invariant.7"]
    assert (summed.kind, summed.stage, summed.channel) == ("all-reduce", "whole", 1)
    assert (summed.operand_bytes, summed.result_bytes, summed.group) == (MIB, MIB, (0, 1, 2, 3))
    gathered, scattered = found["all_gather.3"], found["reduce_scatter.7"]
    assert (gathered.kind, gathered.operand_bytes, gathered.result_bytes) == ("all-gather", 256 * KIB, MIB)
    assert (scattered.kind, scattered.operand_bytes, scattered.result_bytes) == ("reduce-scatter", MIB, 256 * KIB)
    assert {collective.kind for collective in found.values()} == {
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "collective-permute",
    }


def test_a_start_and_its_done_are_one_collective():
    found = collectives("collectives_v5e")
    start, done = found["collective-permute-start"], found["collective-permute-done"]
    assert (start.stage, done.stage, start.channel, done.channel) == ("start", "done", 1, 1)
    assert start.pairs == tuple((source, (source + 1) % 8) for source in range(8)) == done.pairs
    assert (start.operand_bytes, start.result_bytes) == (256 * KIB, 256 * KIB)


def test_a_collective_that_runs_beside_a_product():
    found = collectives("mesh_of_two_axes_v5e")
    stages = {name: collective.stage for name, collective in found.items() if collective.channel == 4}
    assert stages == {"async-collective-start": "start", "async-collective-done": "done"}
    one = found["async-collective-start"]
    assert (one.kind, one.group, one.operand_bytes, one.result_bytes) == (
        "all-gather",
        (0, 4, 8, 12),
        512 * KIB,
        2 * MIB,
    )


def test_axes_of_a_mesh():
    assert collectives("mesh_of_two_axes_v5e")["all-reduce"].group == (0, 1, 2, 3)


def test_several_arrays_at_once():
    one = collectives("mesh_of_two_axes_v5e")["all-reduce.4"]
    assert one.operand_bytes == 8 * MIB + 512


def test_a_fused_reduce_scatter():
    (one,) = collectives("reduce_scatter_v5e").values()
    assert (one.kind, one.stage, one.operand_bytes, one.result_bytes) == ("reduce-scatter", "whole", 4 * MIB, 512 * KIB)


def test_asynchronous_collectives_of_either_form():
    read = hlo.parse("""HloModule m, is_scheduled=true, num_partitions=4

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%called (y: f32[256]) -> f32[1024] {
  %y = f32[256]{0} parameter(0)
  ROOT %gather = f32[1024]{0} all-gather(%y), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}
}

ENTRY %main (x: f32[256]) -> f32[256] {
  %x = f32[256]{0} parameter(0)
  %reduce-start = f32[256]{0} all-reduce-start(%x), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%sum
  %gather-start = (f32[256]{0}, f32[1024]{0}) all-gather-start(%x), channel_id=3, replica_groups={}, dimensions={0}
  %async = ((f32[256]{0}), f32[1024]{0}, u32[]) async-start(%x), calls=%called
  %async-done = f32[1024]{0} async-done(%async)
  %gather-done = f32[1024]{0} all-gather-done(%gather-start)
  ROOT %reduce-done = f32[256]{0} all-reduce-done(%reduce-start)
}
""")
    found = {name: collective_of(instruction) for name, instruction in read.entry.instructions.items()}
    assert found.pop("x") is None
    seen = {
        name: (collective.kind, collective.stage, collective.operand_bytes, collective.result_bytes)
        for name, collective in found.items()
        if collective
    }
    assert seen == {
        "reduce-start": ("all-reduce", "start", 1024, 1024),
        "gather-start": ("all-gather", "start", 1024, 4096),
        "async": ("all-gather", "start", 1024, 4096),
        "async-done": ("all-gather", "done", 1024, 4096),
        "gather-done": ("all-gather", "done", 1024, 4096),
        "reduce-done": ("all-reduce", "done", 1024, 1024),
    }


def test_what_the_sparse_cores_do():
    found = collectives("sparse_core_v7x")
    assert {name.rsplit(".", 1)[1]: collective.stage for name, collective in found.items()} == {
        "call-start": "start",
        "call-done": "done",
    }
    for collective in found.values():
        assert (collective.kind, collective.operand_bytes, collective.result_bytes, len(collective.group)) == (
            "all-reduce",
            MIB,
            MIB,
            8,
        )


def test_other_instructions_are_no_collectives():
    read = module("precisions_v5e")
    assert not [instruction for instruction in read.entry.instructions.values() if collective_of(instruction)]


@pytest.mark.parametrize(
    ("written", "group"),
    [
        ("{{0,1},{2,3}}", (0, 1)),
        ("{{0,2,4,6}}", (0, 2, 4, 6)),
        ("{}", ()),
        ("[8,1]<=[8]", (0,)),
        ("[1,8]<=[8]", tuple(range(8))),
        ("[4,4]<=[4,4]T(1,0)", (0, 4, 8, 12)),
        ("[4,6]<=[2,3,4]T(2,0,1)", (0, 4, 8, 12, 16, 20)),
        ("mesh['axis_0'=8] {'axis_0'}", tuple(range(8))),
        ("mesh['a'=4,'b'=2] {'b'}", (0, 1)),
        ("mesh['a'=4,'b'=2] {'a'}", (0, 2, 4, 6)),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", (0, 2, 4, 6)),
        ("mesh['a'=4,'b'=2], device_ids=([8]) {'b'}", (0, 1)),
        ("mesh['a'=4,'b'=1,'c'=16], device_ids=([16,4]T(1,0)) {'b','c'}", tuple(range(0, 64, 4))),
        ("mesh['a'=8] {'a':(2)4}", (0, 1, 2, 3)),
        ("mesh['a'=8] {'a':(1)2}", (0, 4)),
    ],
)
def test_all_ways_to_write_groups(written: str, group: tuple[int, ...]):
    text = f"f32[8]{{0}} all-reduce(%x), channel_id=1, replica_groups={written}, use_global_device_ids=true"
    assert group_of(text) == group


def test_without_groups_all_take_part():
    assert group_of("f32[8]{0} collective-permute(%x), source_target_pairs={{0,1}}") == ()


@pytest.mark.parametrize(
    "written", ["flattened_id", "[2,x]<=[8]", "mesh['a'=4], device_ids=(4,2) {'a'}"], ids=["word", "grid", "mesh"]
)
def test_groups_in_another_way(written: str):
    with pytest.raises(PlanError) as caught:
        group_of(f"replica_groups={written}")
    assert str(caught.value) == (
        f"the groups {f'replica_groups={written}'!r} of a collective in the compiler's text cannot be read; they "
        "should look like 'replica_groups={{0,1},{2,3}}' or 'replica_groups=[2,2]<=[4]'"
    )


@pytest.mark.parametrize(
    "groups",
    [
        *("[2,3]<=[4]", "[2,2]<=[2,2]T(0,2)", "[1048576,2]<=[2097152]", "[0,4]<=[0]", "{{0,1},{a}}", "{{}}"),
        *("mesh['x'=0] {'x'}", "mesh['x'=4] {'y'}", "mesh['x'=4] {'x':(2)4}"),
        "mesh['x'=4,'y'=2], device_ids=([4]) {'x'}",
    ],
)
def test_groups_that_cannot_be(groups: str):
    with pytest.raises(PlanError, match=r"^the groups .replica_groups=") as caught:
        group_of(f"replica_groups={groups}, channel_id=1")
    assert str(caught.value).endswith("'replica_groups=[2,2]<=[4]'")
