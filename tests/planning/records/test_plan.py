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


def test_json_has_no_infinity(tmp_path: Path):
    one = plan_samples.one()["v3-8"]
    assert one.time is not None
    time = dataclasses.replace(one.time, interval_s=(0.1, math.inf))
    path = Plan("step", (dataclasses.replace(one, time=time),)).to_json(tmp_path / "plan.json")
    assert "Infinity" not in path.read_text()
    (read,) = json.loads(path.read_text())["predictions"]
    assert read["interval_s"] == read["time"]["interval_s"] == [0.1, None]
