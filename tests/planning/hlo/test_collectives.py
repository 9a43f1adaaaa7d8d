from anytpu.planning import hlo
from anytpu.planning.hlo import Collective, collective_of
from planning.hlo.saved import module

KIB, MIB = 1024, 1024**2


def collectives(name: str) -> dict[str, Collective]:
    read = module(name)
    found = {one.name: collective_of(read, one) for one in read.entry.instructions.values()}
    return {name: collective for name, collective in found.items() if collective}


def test_kinds_bytes_and_rings():
    found = collectives("collectives_v4")
    summed = found["psum_invariant.7"]
    assert (summed.kind, summed.stage, summed.dtype, summed.channel) == ("all-reduce", "whole", "bf16", 1)
    assert (summed.operand_bytes, summed.result_bytes, summed.operands) == (MIB, MIB, 1)
    assert (summed.groups.count, summed.groups.size) == (1, 4)
    assert (summed.emitter, summed.strategy) == ("RotatedPincerEmitter", "UniDirectionNDRingStrategy")
    assert (summed.colors, summed.phases, summed.rings) == (4, 2, (2, 2))
    gathered, scattered = found["all_gather.3"], found["reduce_scatter.7"]
    assert (gathered.kind, gathered.operand_bytes, gathered.result_bytes) == ("all-gather", 256 * KIB, MIB)
    assert (gathered.emitter, gathered.colors, gathered.rings) == ("2DAllGatherOnMajorDim", None, ())
    assert (scattered.kind, scattered.operand_bytes, scattered.result_bytes) == ("reduce-scatter", MIB, 256 * KIB)
    assert {one.kind for one in found.values()} == {
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
    stages = {name: one.stage for name, one in found.items() if one.channel == 4}
    assert stages == {"async-collective-start": "start", "fusion.27": "during", "async-collective-done": "done"}
    one = found["async-collective-start"]
    assert (one.kind, one.groups.first, one.operand_bytes, one.result_bytes) == (
        "all-gather",
        (0, 4, 8, 12),
        512 * KIB,
        2 * MIB,
    )


def test_axes_of_a_mesh():
    groups = collectives("mesh_of_two_axes_v5e")["all-reduce"].groups
    assert (groups.axes, groups.count, groups.size, groups.first) == (("axis_1",), 4, 4, (0, 1, 2, 3))


def test_several_arrays_at_once():
    one = collectives("mesh_of_two_axes_v5e")["all-reduce.4"]
    assert (one.operands, one.operand_bytes) == (3, 8 * MIB + 512)


def test_a_fused_reduce_scatter():
    (one,) = collectives("reduce_scatter_v5e").values()
    assert (one.kind, one.stage, one.operand_bytes, one.result_bytes) == ("reduce-scatter", "whole", 4 * MIB, 512 * KIB)
    assert (one.emitter, one.colors, one.rings) == ("SingleInputAllReduceScatterFusion", 1, (8,))


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
    found = {name: collective_of(read, one) for name, one in read.entry.instructions.items()}
    assert found.pop("x") is None
    seen = {name: (one.kind, one.stage, one.operand_bytes, one.result_bytes) for name, one in found.items() if one}
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
    assert {name.rsplit(".", 1)[1]: one.stage for name, one in found.items()} == {
        "call-start": "start",
        "call-done": "done",
    }
    for one in found.values():
        assert (one.kind, one.operand_bytes, one.result_bytes, one.groups.size) == ("all-reduce", MIB, MIB, 8)
        assert (one.emitter, one.colors, one.phases) == ("SparseCore", 4, 2)


def test_other_instructions_are_no_collectives():
    read = module("precisions_v5e")
    assert not [one for one in read.entry.instructions.values() if collective_of(read, one)]
