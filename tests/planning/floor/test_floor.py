"""Floors: by hand, and below what the compiler's answer is priced at."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from anytpu.planning.floor.floor import NOTE, PREDICTED_BY, by_floor, least_of, rate_of
from anytpu.planning.floor.work import work_of
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records.target import target_named
from anytpu.program import of
from anytpu.program.program import REPLICA_AXIS, REPLICATED, ROWS, Program
from anytpu.units import GIB

V3, V5E = target_named("v3-8"), target_named("v5e-1")
WHY = "libtpu is not installed"


def spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def training(rows: int = 64, width: int = 512) -> Program:
    """Return one step of gradient descent on two layers."""

    def loss(weights: Any, x: Any) -> Any:
        return ((jax.nn.relu(x @ weights[0]) @ weights[1]) ** 2).mean()

    def step(weights: Any, x: Any) -> tuple[Any, Any]:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, s: w - 0.1 * s, weights, slopes), value

    names = ("first", "second")
    return Program("sgd/train", step, [spec(width, width)] * 2, spec(rows, width), ROWS, state_names=names)


def test_the_products_bound_a_large_step():
    found = by_floor(training(2**16, 4096), V5E, PlanSettings(), WHY)
    assert found.time is not None
    (op,) = found.time.ops
    assert op.flops == 5 * 2 * 2**16 * 4096**2  # two forward, three backward: no gradient of the input
    assert found.time.step_s == op.time_s == op.flops / 197e12
    assert (op.kind, op.bound, op.priced_by) == ("matmul", "compute", "floor")


def test_the_bytes_bound_a_small_step():
    found = by_floor(training(), V5E, PlanSettings(), WHY)
    assert found.time is not None
    (op,) = found.time.ops
    weights, batch = 2 * 4 * 512 * 512, 4 * 64 * 512
    assert op.bytes == weights + batch + weights + 4  # read, read, written, the loss
    assert op.time_s == op.bytes / V5E.hbm_bytes_per_s
    assert (op.kind, op.bound) == ("memory", "memory")


def test_it_says_that_it_is_a_floor():
    found = by_floor(training(), V5E, PlanSettings(), WHY)
    assert found.time is not None
    assert (found.basis, found.predicted_by, found.compile_s) == ("floor", PREDICTED_BY, None)
    assert found.time.interval_s == (found.time.step_s, math.inf)
    assert found.notes == (
        WHY,
        "This is a floor, not a forecast: a step takes at least so long, costs at least so much, and needs at least "
        "the memory of its state, batch and outputs. How much more, only the TPU compiler can tell.",
    )
    assert found.time.evidence == (
        "The products of the step take 852 ns at the peak of the matrix units, and its 4.13 MiB of arguments and "
        "results 5.28 µs at the peak of HBM. The longer of the two is the floor; layouts, vector work, the network and "
        "the host come on top.",
    )


def test_devices_share_the_work_once():
    alone, shared = least_of(work_of(training()), V5E), least_of(work_of(training()), V3)
    assert shared.flops["bf16"] == alone.flops["bf16"] / 8
    sizes = {buffer.name: buffer.bytes for buffer in shared.memory}
    assert sizes == {"first": 2**20, "second": 2**20, "batch": 4 * 8 * 512, "output/0": 0}


def test_what_is_not_split_is_computed_by_each_device():
    program = Program("square", lambda w, x: (w, x @ w), spec(512, 512), spec(64, 512), REPLICATED)
    assert least_of(work_of(program), V3).flops == {"bf16": 2 * 64 * 512 * 512}


def test_code_of_one_replica_counts_for_all():
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        return state - jax.lax.pmean(x.T @ (x @ state), REPLICA_AXIS), x.sum()

    program = Program("replicas", step, spec(32, 32), spec(8, 16, 32), ROWS, replicas=8)
    assert least_of(work_of(program), V3).flops == {"bf16": 2 * 2 * 16 * 32 * 32}


def test_a_shard_map_is_divided_by_the_devices_once():
    """The second cost model divided its body twice, and so was 8 times too fast."""
    mesh = AbstractMesh((8,), ("data",))
    over = PartitionSpec("data")
    mapped = jax.shard_map(lambda w, x: x @ w, mesh=mesh, in_specs=(PartitionSpec(), over), out_specs=over)
    batch = jax.ShapeDtypeStruct((64, 128), "float32", sharding=NamedSharding(mesh, over))
    weight = jax.ShapeDtypeStruct((128, 32), "float32", sharding=NamedSharding(mesh, PartitionSpec()))
    for step in (lambda w, x: (w, mapped(w, x)), lambda w, x: (w, x @ w)):
        least = least_of(work_of(of(step, (weight, batch))), V3)
        assert least.flops == {"bf16": 2 * 64 * 128 * 32 / 8}
        assert [buffer.bytes for buffer in least.memory] == [4 * 128 * 32, 4 * 8 * 128, 4 * 8 * 32]


def test_sharded_state_lies_in_parts():
    mesh = AbstractMesh((4, 2), ("data", "model"))
    weight = jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, PartitionSpec("data", "model")))
    batch = jax.ShapeDtypeStruct((16, 64), "float32", sharding=NamedSharding(mesh, PartitionSpec("data")))
    least = least_of(work_of(of(lambda w, x: (w * 2, x @ w), (weight, batch))), V3)
    assert [buffer.bytes for buffer in least.memory] == [4 * 64 * 64 // 8, 4 * 16 * 64 // 4, 4 * 16 * 64 // 8]


def test_what_does_not_fit_has_no_time():
    program = Program("wide", lambda w, x: (w + 1, x), spec(2**16, 2**17), spec(8, 8), ROWS)
    found = by_floor(program, V5E, PlanSettings(), WHY)
    assert (found.time, found.memory.fits) == (None, False)
    assert found.memory.peak_bytes / GIB == pytest.approx(32, rel=1e-6)
    assert found.notes == (WHY, NOTE)


def test_ragged_products_have_a_floor():
    def step(w: Any, batch: Any) -> tuple[Any, Any]:
        x, sizes = batch
        return w, jax.lax.ragged_dot(x, w, sizes)

    program = of(step, (spec(4, 64, 32), (spec(128, 64), spec(4, dtype=jnp.int32))))
    assert least_of(work_of(program), V5E).flops == {"bf16": 2 * 128 * 64 * 32}


@pytest.mark.parametrize(
    ("dtype", "name", "rate"),
    [
        ("bf16", "v2-8", 46e12 / 2),
        ("bf16x6", "v5e-1", 197e12 / 6),
        ("s8", "v5e-1", 393e12),
        ("s4", "v5e-1", 2 * 393e12),
        ("s8", "v3-8", 123e12 / 2),
        ("f8", "v5e-1", 197e12),
    ],
)
def test_rates(dtype: str, name: str, rate: float):
    assert rate_of(dtype, target_named(name)) == rate
