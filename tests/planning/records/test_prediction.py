import dataclasses
import json
import math

import plan_samples


def test_an_interval_without_an_upper_end_is_null_in_json(tmp_path):
    one = plan_samples.one()["v3-8"]
    time = dataclasses.replace(one.time, interval_s=(0.5, math.inf))
    plan = dataclasses.replace(plan_samples.one(), predictions=(dataclasses.replace(one, time=time),))
    record = json.loads(json.dumps(plan.to_record(), allow_nan=False))["predictions"][0]
    assert record["interval_s"] == record["time"]["interval_s"] == [0.5, None]


def test_bounds_are_numbers_in_json():
    one = plan_samples.one()["v3-8"]
    record = json.loads(json.dumps(one.to_record(), allow_nan=False))
    assert record["interval_s"] == record["time"]["interval_s"] == list(one.interval_s)
