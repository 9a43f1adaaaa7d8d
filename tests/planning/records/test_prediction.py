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


def test_a_prediction_is_one_line_at_the_prompt():
    five = plan_samples.five()
    assert repr(five["v2-8"]) == (
        "<Prediction of resnet50/train on v2-8, batch 2,048: does not fit; 8.6 GiB of 7.48 GiB>"
    )
    assert repr(five["v3-8"]) == (
        "<Prediction of resnet50/train on v3-8, batch 2,048: 263 ms a step (226 ms to 302 ms); 8.6 GiB of 15.5 GiB>"
    )
    endless = dataclasses.replace(five["v3-8"].time, interval_s=(0.2, math.inf))
    assert repr(dataclasses.replace(five["v3-8"], time=endless, memory=None, batch_size=None)) == (
        "<Prediction of resnet50/train on v3-8: 263 ms a step (200 ms to no upper bound)>"
    )


def test_its_time_and_memory_do_not_list_operations_and_buffers():
    one = plan_samples.five()["v3-8"]
    assert max(len(repr(one.time)), len(repr(one.memory))) < 200


def test_a_floor_is_told_from_a_forecast():
    fits, _, unfit = plan_samples.floors()
    record = json.loads(json.dumps(fits.to_record(), allow_nan=False))
    assert (record["is_floor"], record["basis"], record["mfu"]) == (True, "floor", None)
    assert record["interval_s"] == record["time"]["interval_s"] == [fits.step_s, None]
    assert (fits.fits, unfit.fits, unfit.step_s) == (True, False, None)
    forecast = plan_samples.one()["v3-8"].to_record()
    assert (forecast["is_floor"], forecast["basis"]) == (False, "compiled")


def test_a_floor_is_neither_fastest_nor_cheapest():
    floors, forecasts = plan_samples.floors(), plan_samples.five()
    assert (floors.fastest, floors.cheapest) == (None, None)
    mixed = dataclasses.replace(forecasts, predictions=(*floors, *forecasts))
    assert (mixed.fastest, mixed.cheapest) == (forecasts.fastest, forecasts.cheapest)


def test_a_floor_is_a_bound_at_the_prompt():
    fits, _, unfit = plan_samples.floors()
    assert repr(fits) == (
        "<Prediction of resnet50/train on v3-8, batch 2,048: at least 263 ms a step; at least 8.6 GiB of 15.5 GiB>"
    )
    assert repr(unfit) == (
        "<Prediction of resnet50/train on v2-8, batch 2,048: does not fit; at least 8.6 GiB of 7.48 GiB>"
    )
