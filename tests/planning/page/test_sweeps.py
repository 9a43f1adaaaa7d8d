from __future__ import annotations

import dataclasses

import plan_samples
from anytpu.planning.page.sweeps import batch_curves, efficiency, ideal_step_s, scaling_curves
from anytpu.planning.records import Plan


def test_curves_of_a_sweep():
    plan = plan_samples.swept()
    batches = {curve.name: [point.batch_size for point in curve.points] for curve in batch_curves(plan)}
    assert batches == {key: [256, 512, 1024, 2048, 4096, 8192] for key in ("v2-8", "v3-8", "v6e-8")}
    scaled = {curve.name: [point.target.name for point in curve.points] for curve in scaling_curves(plan)}
    assert scaled == {"v3": ["v3-8", "v3-32", "v3-128", "v3-512", "v3-2048"]}


def test_a_plan_without_a_sweep_has_no_curves():
    assert batch_curves(plan_samples.five()) == scaling_curves(plan_samples.five()) == []
    assert scaling_curves(plan_samples.bare()) == []


def test_of_each_slice_the_prediction_that_was_asked_for_first():
    plan = plan_samples.swept()
    (curve,) = scaling_curves(plan)
    assert curve.points[0] is plan["v3-8"]


def test_efficiency_is_of_the_smallest_slice():
    curve = scaling_curves(plan_samples.swept())[0]
    first, last = curve.points[0], curve.points[-1]
    assert efficiency(curve, first) == 1.0
    assert ideal_step_s(curve, last) == first.step_s
    assert first.step_s is not None and last.step_s is not None
    assert efficiency(curve, last) == first.step_s / last.step_s


def test_one_batch_on_ever_more_devices():
    slow = plan_samples.prediction("v3-8", 2048, 1010, 15.48)
    fast = plan_samples.prediction("v3-32", 2048, 1010, 15.48)
    (curve,) = scaling_curves(Plan("job", (slow, fast)))
    assert slow.step_s is not None and fast.step_s is not None
    assert ideal_step_s(curve, fast) == slow.step_s / 4
    assert efficiency(curve, fast) == slow.step_s / 4 / fast.step_s


def test_what_does_not_fit_is_no_measure():
    small = plan_samples.prediction("v3-8", 8192, 1010, 15.48)
    middle, large = (plan_samples.prediction(f"v3-{n}", 8192, 1010, 15.48) for n in (32, 128))
    (curve,) = scaling_curves(Plan("job", (small, middle, large)))
    assert [point.fits for point in curve.points] == [False, True, True]
    assert (efficiency(curve, small), efficiency(curve, middle)) == (None, 1.0)
    nothing = dataclasses.replace(large, batch_size=None)
    assert ideal_step_s(curve, nothing) is None
