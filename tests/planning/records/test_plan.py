from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import plan_samples
from anytpu.planning.records import Plan


def test_a_record_names_its_form_and_the_best_systems():
    record = plan_samples.five().to_record()
    assert (record["format"], record["fastest"], record["cheapest"]) == (1, "v7x-8", "v6e-8")
    nothing = Plan("step", (plan_samples.five()["v2-8"],)).to_record()
    assert (nothing["fastest"], nothing["cheapest"]) == (None, None)


def test_what_has_no_upper_bound_is_best_only_where_nothing_has_one():
    plan = plan_samples.five()
    assert plan.fastest is plan["v7x-8"] and plan.cheapest is plan["v6e-8"]
    mixed = Plan("step", (plan_samples.unbounded(plan["v7x-8"]), plan_samples.unbounded(plan["v6e-8"]), plan["v3-8"]))
    assert mixed.fastest is mixed.cheapest is plan["v3-8"]
    endless = Plan("step", mixed.predictions[:2])
    assert endless.fastest is endless["v7x-8"] and endless.cheapest is endless["v6e-8"]
    assert not endless["v7x-8"].is_bounded and plan["v7x-8"].is_bounded


def test_json_has_no_infinity(tmp_path: Path):
    one = plan_samples.one()["v3-8"]
    assert one.time is not None
    time = dataclasses.replace(one.time, interval_s=(0.1, math.inf))
    path = Plan("step", (dataclasses.replace(one, time=time),)).to_json(tmp_path / "plan.json")
    assert "Infinity" not in path.read_text()
    (read,) = json.loads(path.read_text())["predictions"]
    assert read["interval_s"] == read["time"]["interval_s"] == [0.1, None]


def test_a_plan_is_two_lines_at_the_prompt():
    assert repr(plan_samples.one()) == (
        "<Plan of resnet50/train: v3-8 263 ms a step (226 ms to 302 ms).\nplan.show() prints it.>"
    )
    assert repr(plan_samples.five()) == (
        "<Plan of resnet50/train: v2-8 does not fit, v3-8 263 ms a step (226 ms to 302 ms), v5e-8 187 ms a step (161 "
        "ms to 215 ms), v6e-8 60.1 ms a step (51.7 ms to 69.1 ms), 1 more.\nplan.show() prints it.>"
    )
