"""How much less is known of a step that is unlike those that were fitted, and what is said of it."""

import doctest
import math

import pytest

from anytpu.planning.records import OpTime
from anytpu.planning.target import target_named
from anytpu.planning.timing import step_kind
from anytpu.planning.timing.rates import calibration
from anytpu.planning.timing.step_kind import kind_sentences, steps_record, variance_of_kind
from anytpu.planning.timing.uncertainty import evidence_of, interval_of

V5E = target_named("v5e-1")
STEPS = {"all": 27, "without_backward": 1, "most": {"vector": 0.25, "memory": 0.7}}


def ops(vector=0.2, memory=0.2, is_backward=True, source="model.py:3"):
    """Return the operations of a step of a second."""
    matmul = OpTime("product", "fusion", "matmul", 1 - vector - memory, is_backward=is_backward, source=source)
    rest = [OpTime(kind, "fusion", kind, time_s) for kind, time_s in (("vector", vector), ("memory", memory))]
    return [matmul, *rest]


def test_a_training_step_like_those_that_were_fitted_adds_nothing():
    assert variance_of_kind(ops(), STEPS) == 0
    assert kind_sentences(ops(), STEPS) == ()


def test_a_step_without_a_backward_pass_is_less_sure_the_fewer_were_fitted():
    forward = ops(is_backward=False)
    assert variance_of_kind(forward, STEPS) == pytest.approx(0.15**2 / 2)
    assert variance_of_kind(forward, {**STEPS, "without_backward": 0}) == pytest.approx(0.15**2)
    assert kind_sentences(forward, STEPS) == (
        "Few published steps are like this one, so the interval is wider: it has no backward pass, like 1 of the 27 "
        "published steps.",
    )


def test_a_step_without_names_is_taken_for_training():
    assert variance_of_kind(ops(is_backward=False, source=""), STEPS) == 0


def test_time_beyond_the_largest_share_of_any_fitted_step_is_less_sure():
    decode = ops(vector=0.85, memory=0.1, is_backward=False)
    assert variance_of_kind(decode, STEPS) == pytest.approx(0.15**2 / 2 + (0.5 * 0.6) ** 2)
    assert kind_sentences(decode, STEPS) == (
        "Few published steps are like this one, so the interval is wider: it has no backward pass, like 1 of the 27 "
        "published steps; it spends 85% of its time on the vector units, none of those over 25%.",
    )
    assert variance_of_kind(ops(vector=0.0, memory=0.9), STEPS) == pytest.approx((0.5 * 0.2) ** 2)


def test_the_interval_of_a_decode_step_is_wider_than_that_of_training():
    train, decode = ops(), ops(vector=0.85, memory=0.1, is_backward=False)
    widths = [math.log(high / low) for low, high in (interval_of(one, V5E) for one in (train, decode))]
    assert widths[1] > 3 * widths[0]
    assert evidence_of(V5E, decode)[0].startswith("Few published steps are like this one, so the interval is wider: ")
    assert evidence_of(V5E, train) == evidence_of(V5E)


def test_the_calibration_keeps_what_its_steps_are():
    steps = calibration()["steps"]
    assert (steps["all"], steps["without_backward"]) == (27, 1)
    assert 0.2 < steps["most"]["vector"] < 0.3 < steps["most"]["memory"] < 0.8


def test_what_is_kept_of_no_steps():
    assert steps_record([]) == {"all": 0, "without_backward": 0, "most": {"vector": 0.0, "memory": 0.0}}


def test_the_examples_of_the_docstrings_run():
    assert doctest.testmod(step_kind, extraglobs={"OpTime": OpTime}).failed == 0
