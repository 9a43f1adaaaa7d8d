"""A plan against a lock: the tolerances, the whole reports, and comparisons that are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import plan_samples
from anytpu.errors import SettingError
from anytpu.planning.records import Buffer, MemoryUse, OpTime, Plan
from anytpu.units import GIB, MIB
from planning.predictions import prediction

REDUCED = OpTime(
    "all-reduce.1", "all-reduce", "collective", 0.001, bytes=10 * MIB, layer="out", collective="all-reduce"
)
GATHERED = OpTime(
    "fusion.7", "fusion", "collective", 0.002, 4, bytes=24 * MIB, layer="dense", collective="all-gather"
)  # fmt: skip


def op(layer: str, time_s: float, source: str = "") -> OpTime:
    return OpTime(f"fusion.{layer}", "fusion", "matmul", time_s, layer=layer, source=source)


def memory(dense_gib: float = 1.0, **more: Any) -> MemoryUse:
    buffers = (
        Buffer("dense output", "temporary", int(dense_gib * GIB), int(dense_gib * GIB), "", "dense", "net.py:7"),
        Buffer("dense/kernel", "state", GIB, GIB, ""),
    )
    return MemoryUse(int((1 + dense_gib) * GIB), 8 * GIB, buffers=buffers, **more)


LAYERS = (op("embed", 0.002), op("dense", 0.005, "net.py:7"), op("out", 0.002), REDUCED)


def plan(*ops: OpTime, **more: Any) -> Plan:
    return Plan("net", (prediction(ops or LAYERS, **{"memory": memory(), **more}),))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return plan().lock("plan.lock")


def test_a_plan_that_did_not_change(path: Path):
    check = plan().check_lock(path, step_percent=0, memory_percent=0)
    assert check.holds and str(check) == "plan.lock holds."
    assert repr(check) == "<LockCheck: plan.lock holds. print() shows the changes.>"


def test_a_change_within_the_tolerance(path: Path):
    ops = (*LAYERS[:3], dataclasses.replace(REDUCED, time_s=0.0014, bytes=10.1 * MIB))
    assert str(plan(*ops, memory=memory(1.03)).check_lock(path)) == "plan.lock holds."
    assert not plan(*ops).check_lock(path, step_percent=3).holds
    assert not plan(memory=memory(1.03)).check_lock(path, memory_percent=1).holds
    assert not plan(*ops).check_lock(path, memory_percent=0.5).holds


def test_everything_that_got_worse(path: Path):
    ops = (
        op("dense", 0.009, "net.py:7"),
        op("attention", 0.003, "net.py:9"),
        op("out", 0.002),
        dataclasses.replace(REDUCED, bytes=20 * MIB),
        GATHERED,
    )
    check = plan(*ops, memory=memory(2.5), layout="mesh data=8; 3 x (data)").check_lock(path)
    assert not check.holds
    assert (
        str(check)
        == """\
plan.lock does not hold: 1 of 1 step has another layout and 1 of 1 step got worse.

v3-8, 1,024 examples a step
  changed: the layout is mesh data=8; 3 x (data); in the lock it is none
  worse: a device needs 3.5 GiB, 75 % more than 2 GiB
  worse: a step takes 17 ms, 70 % more than 10 ms
  worse: all-gather exchanges 24 MiB in 4 calls (most by dense); in the lock there is none
  worse: all-reduce exchanges 20 MiB in 1 call (most by out), 100 % more than 10 MiB in 1 call
  time: dense (net.py:7) grew from 5 ms to 11 ms
  time: attention (net.py:9) is new, 3 ms
  time: embed is gone, 2 ms in the lock
  memory: dense (net.py:7) grew from 1 GiB to 2.5 GiB

If this is intended, write the lock again: anytpu plan ... --lock plan.lock"""
    )


def test_everything_that_got_better(path: Path):
    check = plan(*LAYERS[1:3], memory=memory(0.5)).check_lock(path)
    assert check.holds
    assert (
        str(check)
        == """\
plan.lock holds.

v3-8, 1,024 examples a step
  better: a device needs 1.5 GiB, 25 % less than 2 GiB
  better: a step takes 7 ms, 30 % less than 10 ms
  better: all-reduce is gone; in the lock it exchanges 10 MiB in 1 call
  time: embed is gone, 2 ms in the lock
  time: out shrank from 3 ms to 2 ms
  memory: dense (net.py:7) shrank from 1 GiB to 512 MiB

To keep the gain, write the lock again: anytpu plan ... --lock plan.lock"""
    )


def test_a_step_that_no_longer_fits(path: Path):
    large = dataclasses.replace(memory(9.0, said="RESOURCE_EXHAUSTED"), buffers=memory(9.0).buffers[:1])
    unfit = plan(memory=large)
    assert (
        str(unfit.check_lock(path))
        == """\
plan.lock does not hold: 1 of 1 step got worse.

v3-8, 1,024 examples a step
  worse: it no longer fits: a device needs 10 GiB of 8 GiB; in the lock it is 2 GiB
  memory: dense (net.py:7) grew from 1 GiB to 9 GiB

If this is intended, write the lock again: anytpu plan ... --lock plan.lock"""
    )
    unfit.lock(path)
    again = plan().check_lock(path)
    assert again.holds
    assert again.steps[0].gains == ("it fits now: a device needs 2 GiB of 8 GiB; in the lock it is 10 GiB",)
    larger = plan(memory=memory(9.5, said="RESOURCE_EXHAUSTED")).check_lock(path)
    assert larger.steps[0].faults == ("a device needs 10.5 GiB, 5 % more than 10 GiB",)


def test_a_long_list_of_layers_is_cut(path: Path):
    check = plan(*LAYERS, *(op(f"layer{number}", 0.001) for number in range(10))).check_lock(path)
    (step,) = check.steps
    assert step.layers[0] == "layer0 is new, 1 ms"
    assert (len(step.layers), step.layers[-1]) == (9, "and 2 more")


def test_layers_that_keras_numbers_anew(path: Path):
    made = [op(f"net/dense{number}/kernel", 0.001) for number in ("", "_1", "_2", "_10")]
    plan(*LAYERS, *made).lock(path)
    again = [op(f"net_3/dense_{number}/kernel", 0.001) for number in (8, 9, 10)]
    check = plan(*LAYERS, *again, op("net_3/dense_11/kernel", 0.003)).check_lock(path)
    assert check.steps[0].layers == ("net_3/dense_11/kernel grew from 1 ms to 3 ms",)


def test_a_scalar_more_is_no_change(path: Path):
    plan(*LAYERS[:3], dataclasses.replace(REDUCED, bytes=4.0)).lock(path)
    assert plan(*LAYERS[:3], dataclasses.replace(REDUCED, bytes=400.0)).check_lock(path).holds


def test_other_versions_and_names(path: Path):
    path.write_text(path.read_text().replace("libtpu 0.0.0", "libtpu 0.0.9").replace('"net"', '"old.py:net"'))
    assert (
        str(plan().check_lock(path))
        == """\
plan.lock holds.

job: old.py:net in the lock, net in the plan
predicted by: the TPU compiler (libtpu 0.0.9) in the lock, the TPU compiler (libtpu 0.0.0) in the plan"""
    )


def refusal(plan: Plan, path: Path | str, **tolerances: Any) -> str:
    with pytest.raises(SettingError) as raised:
        plan.check_lock(path, **tolerances)
    return str(raised.value)


def test_a_floor_is_not_compared_with_a_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    forecast, floor = Plan("net", (plan_samples.one()["v3-8"],)), Plan("net", (plan_samples.floors()["v3-8"],))
    forecast.lock("plan.lock")
    assert refusal(floor, "plan.lock") == (
        "plan.lock cannot be compared with this plan: v3-8, 2,048 examples a step is a forecast in the lock and a "
        "floor in the plan. The TPU compiler, libtpu, is not installed: pip install 'anytpu[plan]'"
    )
    floor.lock("plan.lock")
    assert refusal(forecast, "plan.lock") == (
        "plan.lock cannot be compared with this plan: v3-8, 2,048 examples a step is a floor in the lock and a "
        "forecast in the plan. Write the lock again: anytpu plan ... --lock plan.lock"
    )


def test_floors_are_compared_with_each_other(tmp_path: Path):
    floors = plan_samples.floors()
    path = floors.lock(tmp_path / "plan.lock")
    path.write_text(path.read_text().replace('"memory_mib": 8806', '"memory_mib": 8000').replace("262.5", "200"))
    check = floors.check_lock(path)
    assert str(check).splitlines()[0] == f"{path} does not hold: 3 of 3 steps got worse."
    faults = {step.name: step.faults for step in check.steps}
    assert faults["v3-8, 2,048 examples a step"] == (
        "a device needs at least 8.6 GiB, 10.1 % more than 7.81 GiB",
        "a step takes at least 262 ms, 31.2 % more than 200 ms",
    )


def test_an_upper_bound_that_was_lost(path: Path):
    endless = Plan("net", (plan_samples.unbounded(plan().predictions[0]),))
    assert refusal(endless, "plan.lock") == (
        "plan.lock cannot be compared with this plan: v3-8, 1,024 examples a step is a forecast in the lock and a time "
        "without upper bound in the plan. Write the lock again: anytpu plan ... --lock plan.lock"
    )


def test_other_systems_and_batches(path: Path):
    other = Plan(
        "net", (prediction(tpu="v5e-8"), prediction(batch_size=512), prediction(batch_size=None, mode="infer"))
    )
    assert refusal(other, "plan.lock") == (
        "plan.lock has other steps than this plan: only the lock has v3-8, 1,024 examples a step, and only the plan "
        "has v5e-8, 1,024 examples a step; v3-8, 512 examples a step; v3-8, mode 'infer'. Plan the steps of the lock, "
        "or write it again: anytpu plan ... --lock plan.lock"
    )
    more = Plan("net", (*plan().predictions, prediction(tpu="v5e-8")))
    assert refusal(more, "plan.lock").startswith("plan.lock has other steps than this plan: only the plan has v5e-8, ")


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "5"])
def test_tolerances_that_are_none(value: Any, path: Path):
    assert refusal(plan(), path, step_percent=value) == f"step_percent must be a number of 0 or more, not {value!r}"
    assert refusal(plan(), path, memory_percent=value) == f"memory_percent must be a number of 0 or more, not {value!r}"


def test_a_large_growth_is_written_out(path: Path):
    check = plan(op("embed", 0.002), op("dense", 0.195), op("out", 0.002), REDUCED).check_lock(path)
    assert "  worse: a step takes 200 ms, 1,900 % more than 10 ms\n" in str(check)
