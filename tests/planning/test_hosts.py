"""The load of one host of a slice with several."""

from __future__ import annotations

import jax
import pytest

import anytpu as tpu
from anytpu.planning.forecasts.hosts import host_load
from anytpu.planning.jobs.job import PlanJob
from anytpu.planning.records import HostLoad, OpTime, Prediction
from anytpu.planning.timing.network import BETWEEN_SLICES
from anytpu.program.program import ROWS, Layout, Program
from planning.predictions import prediction

STATE = {"w": jax.ShapeDtypeStruct((1000, 100), "float32"), "step": jax.ShapeDtypeStruct((), "int32")}
BATCH = (jax.ShapeDtypeStruct((1024, 50), "bfloat16"), jax.ShapeDtypeStruct((200,), "float32"))
PROGRAM = Program("step", lambda state, batch: (state, batch), STATE, BATCH, (ROWS, Layout(None)))
STATE_BYTES, ROWS_BYTES, WHOLE_BYTES = 400_004, 1024 * 50 * 2, 200 * 4
CARDS = 4 * 3.1e9  # Four chips of v5e.


def predicted(tpu: str, *ops: OpTime, **more) -> Prediction:
    return prediction((OpTime("fusion.1", "fusion", "matmul", 0.5), *ops), tpu=tpu, **more)


def test_one_host_has_no_load():
    assert host_load(PROGRAM, predicted("v5e-8")) is None


def test_each_host_supplies_its_rows():
    load = host_load(PROGRAM, predicted("v5e-32"))
    assert load == HostLoad(
        network_bytes_per_s=CARDS,
        examples_per_s=1024 / 8 / 0.5,
        input_bytes_per_s=(ROWS_BYTES / 8 + WHOLE_BYTES) / 0.5,
        checkpoint_bytes=STATE_BYTES,
        checkpoint_s=STATE_BYTES / CARDS,
    )
    assert load is not None and load.input_share == (ROWS_BYTES / 8 + WHOLE_BYTES) / 0.5 / CARDS


def test_hosts_that_supply_the_same_rows():
    """A mesh with 2 parts of the rows and 16 of the weights: four of eight hosts have the same rows."""
    mesh = jax.sharding.AbstractMesh((2, 16), ("data", "model"))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    spec = jax.ShapeDtypeStruct((1024, 50), "float32", sharding=rows)
    program = PlanJob(lambda state, batch: (state, batch), ((), spec)).program()
    load = host_load(program, predicted("v5e-32"))
    assert load is not None
    assert (load.examples_per_s, load.input_bytes_per_s) == (1024 / 2 / 0.5, 1024 * 50 * 4 / 2 / 0.5)
    assert (load.checkpoint_bytes, load.checkpoint_s) == (0, 0.0)


def test_traffic_between_slices():
    exchange = OpTime("rd", "recv-done", "collective", 0.0, bytes=1000.0, collective=BETWEEN_SLICES)
    inside = OpTime("all-reduce", "all-reduce", "collective", 0.0, bytes=7.0, collective="all-reduce")
    two = predicted("2xv5e-16", exchange, exchange, inside)
    load = host_load(PROGRAM, two)
    assert load is not None and load.slices_bytes == 2 * 1000.0 * 4
    floor = host_load(PROGRAM, predicted("2xv5e-16", exchange, basis="floor"))
    assert floor is not None and floor.slices_bytes is None


def test_a_program_without_rows_and_one_that_does_not_fit():
    without = host_load(PROGRAM, predicted("v5e-32", batch_size=None))
    unfit = host_load(PROGRAM, predicted("v5e-32", time=None))
    for load in (without, unfit):
        assert load is not None
        assert (load.examples_per_s, load.input_bytes_per_s, load.input_share) == (None, None, None)
        assert load.checkpoint_bytes == STATE_BYTES


def test_inference_saves_nothing():
    program = Program("step", lambda state, batch: (state, batch), STATE, BATCH, (ROWS, Layout(None)), mode="infer")
    load = host_load(program, predicted("v5e-32"))
    assert load is not None and (load.checkpoint_bytes, load.checkpoint_s) == (None, None)


def test_a_plan_has_the_load_of_its_hosts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("anytpu._env.libtpu_version", lambda: None)
    specs = (jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((1024, 64), "float32"))
    plan = tpu.plan(lambda state, batch: (state, (batch @ state).sum()), input_specs=specs, tpu=["v5e-8", "v5e-16"])
    assert plan["v5e-8"].host is None
    load = plan["v5e-16"].host
    assert load is not None and load.checkpoint_bytes == 64 * 64 * 4
    assert plan.to_record()["predictions"][1]["host"]["checkpoint_bytes"] == 64 * 64 * 4
