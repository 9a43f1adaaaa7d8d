"""Advice that was tried: what is compiled again, what it gains, and what is left out."""

from __future__ import annotations

import dataclasses

import pytest

from anytpu.planning.advice import Facts, advice_for
from anytpu.planning.records import BatchPadding, MemoryUse, OpTime
from planning.predictions import MIB, buffer, prediction

KNOWN = Facts(float32_share=1.0, is_model=True)
WIDE = prediction(memory=MemoryUse(9 * MIB, 10 * MIB, buffers=(buffer("f32[128,128]", MIB),)))


def faster(times: float):
    """Return what predicts any change to be so many times as fast, and the list of what it was asked."""
    asked = []

    def predict(batch, precision, tpu):
        asked.append((batch, precision))
        ops = (OpTime("fusion.1", "fusion", "matmul", 0.01 / times),)
        return prediction(ops, batch_size=batch)

    return predict, asked


def test_without_a_compiler_advice_is_only_said():
    (one,) = advice_for(WIDE, KNOWN)
    assert (one.topic, one.tried, one.gain) == ("precision", "", None)


def test_a_change_is_compiled_and_its_gain_given():
    predict, asked = faster(2.0)
    (one,) = advice_for(WIDE, KNOWN, predict)
    assert asked == [(1024, "bfloat16")]
    assert (one.tried, one.step_s, one.gain) == ("precision='bfloat16'", 0.005, 2.0)


def test_what_gains_nothing_is_not_advised():
    predict, asked = faster(1.01)
    assert advice_for(WIDE, KNOWN, predict) == ()
    assert len(asked) == 1


def test_what_cannot_be_changed_here_is_only_said():
    predict, asked = faster(2.0)
    (one,) = advice_for(WIDE, Facts(float32_share=1.0), predict, can_batch=False)
    assert (one.tried, asked) == ("", [])


def test_a_change_that_cannot_be_compiled_is_only_said():
    def predict(batch, precision, tpu):
        raise TypeError("cannot reshape")

    (one,) = advice_for(WIDE, KNOWN, predict)
    assert (one.tried, one.gain) == ("", None)


def test_more_steps_a_call_are_estimated_without_compiling():
    ops = (OpTime("f.1", "fusion", "matmul", 0.0003), OpTime("dispatch", "host", "host", 0.0001))
    predict, asked = faster(9.0)
    (one,) = advice_for(prediction(ops), Facts(), predict)
    assert asked == []
    assert one.step_s == 0.0003 + 0.0001 / 32
    assert one.gain == pytest.approx(0.0004 / one.step_s)


def test_the_largest_batch_is_told_of_what_does_not_fit():
    memory = MemoryUse(30 * MIB, 16 * MIB, said="Ran out of memory")
    predict, asked = faster(1.0)
    one = advice_for(dataclasses.replace(prediction(memory=memory), largest_batch=448), Facts(), predict)[0]
    assert asked[0] == (448, None)
    assert (one.tried, one.step_s) == ("batch_size=448", 0.01)


def test_the_greatest_gain_comes_first():
    uneven = dataclasses.replace(WIDE, batch_size=1001, batch_padding=BatchPadding(126, 8, 0.06, "f32[126,64]"))

    def predict(batch, precision, tpu):
        ops = (OpTime("fusion.1", "fusion", "matmul", 0.004 if precision else 0.0098),)
        return prediction(ops, batch_size=batch)

    assert [advice.topic for advice in advice_for(uneven, KNOWN, predict)] == ["precision", "batch"]
