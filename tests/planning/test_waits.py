"""A step that waits for the host: as long as the longer of both, with an interval that holds both."""

from __future__ import annotations

import pytest

from anytpu.planning.advice import Facts, advice_for
from anytpu.planning.costs.waits import add_host_wait
from anytpu.planning.records import OpTime, StepTime
from planning.predictions import prediction

TIME = StepTime((OpTime("f", "fusion", "matmul", 70e-6),), 70e-6, (60e-6, 80e-6))


def test_the_longer_of_both():
    waits = add_host_wait(TIME, 560e-6, 1)
    assert (waits.step_s, waits.interval_s) == (560e-6, (280e-6, 1120e-6))
    assert waits.ops[-1] == OpTime("waiting for the host", "host", "host", 490e-6, priced_by="another host")
    assert waits.evidence == (
        "A call of fit keeps the host busy for 560 µs, measured on two cores of an AMD EPYC; it starts while the "
        "devices run the call before. The TPU's own host may need half of it, or twice.",
    )


def test_a_host_that_is_fast_enough_costs_nothing():
    assert add_host_wait(TIME, 560e-6, 64) == TIME
    assert add_host_wait(TIME, 0.0, 1) == TIME


def test_a_host_that_may_be_too_slow_widens_the_interval():
    near = add_host_wait(TIME, 560e-6, 10)
    assert (near.step_s, near.interval_s) == (70e-6, pytest.approx((60e-6, 112e-6)))


def test_what_is_told_of_it():
    one = prediction(time=add_host_wait(TIME, 560e-6, 1))
    (told,) = [piece for piece in advice_for(one, Facts(is_model=True)) if piece.topic == "steps_per_execution"]
    assert (
        told.text == "Start 512 steps with one call: model.compile(..., steps_per_execution=512), or leave it to fit."
    )
    assert told.evidence == (
        "The host bounds: the devices need 70 µs a step, and a call takes the host 560 µs; 88% of the step is waiting "
        "for it."
    )
    assert told.step_s == pytest.approx(70e-6)
