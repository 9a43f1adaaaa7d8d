"""Plans where the compiler has no answer, and that floors lie below what it is priced at."""

from __future__ import annotations

import json
from typing import Any

import jax
import keras
import pytest

import anytpu as tpu
from anytpu.errors import CompilerMissingError, NoAnswerError, PlanError
from anytpu.planning.floor.floor import NOTE, PREDICTED_BY, least_of, rate_of
from anytpu.planning.floor.work import work_of
from anytpu.planning.records.target import target_named
from compiler_samples import foreign, slow

MISSING = "The TPU compiler, libtpu, is not installed: pip install 'anytpu[plan]'"
SQUARE = jax.ShapeDtypeStruct((64, 64), "float32")


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """No libtpu."""
    monkeypatch.setattr("anytpu._env.libtpu_version", lambda: None)


def network() -> keras.Model:
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(512, "relu"), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def step(state: Any, batch: Any) -> Any:
    value, slope = jax.value_and_grad(lambda w: ((batch @ w) ** 2).mean())(state)
    return state - slope, value


SPECS = (jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((1024, 64), "float32"))


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_there_is_a_floor():
    plan = tpu.plan(network(), 1000, ["v2-8", "v5e-8"], examples=50_000, epochs=3, sweep_batches=[2048], advise=True)
    for prediction in (*plan, *plan.sweep):
        assert (prediction.is_floor, prediction.predicted_by, prediction.mfu, prediction.fits) == (
            True,
            PREDICTED_BY,
            None,
            True,
        )
        assert prediction.notes[:2] == (MISSING, NOTE)
        assert prediction.interval_s == (prediction.step_s, float("inf"))
        assert prediction.cost is not None and prediction.cost.usd_per_step is not None
    rows, into, width, out = 125, 256, 512, 10
    assert plan["v5e-8"].flops == 2 * rows * (2 * into * width + 3 * width * out)
    assert (plan.fastest, plan.cheapest) == (None, None)
    assert json.loads(json.dumps(plan.to_record(), allow_nan=False))["predictions"][0]["is_floor"]


@pytest.mark.usefixtures("no_compiler")
def test_a_floor_waits_for_its_input():
    (one,) = tpu.plan(step, tpu="v3-8", input_specs=SPECS, input_examples_per_s=1024)
    assert (one.step_s, one.is_floor) == (1.0, True)
    assert one.interval_s == (pytest.approx(0.9, rel=0.01), float("inf"))


@pytest.mark.usefixtures("no_compiler")
def test_what_cannot_fit_is_told():
    specs = (jax.ShapeDtypeStruct((2**16, 2**16), "float32"), jax.ShapeDtypeStruct((8, 2**16), "float32"))
    (one,) = tpu.plan(lambda w, x: (w, x @ w), tpu="v3-8", input_specs=specs)
    assert (one.fits, one.is_floor, one.step_s, one.largest_batch) == (False, True, None, None)
    assert one.advice == ()


@pytest.mark.usefixtures("no_compiler")
def test_the_largest_batch_needs_the_compiler():
    with pytest.raises(CompilerMissingError) as caught:
        tpu.max_batch_size(step, "v3-8", input_specs=SPECS)
    assert str(caught.value) == MISSING


def test_a_compiler_that_takes_too_long_leaves_a_floor():
    (one,) = tpu.plan(slow, tpu="v3-8", input_specs=(SQUARE, SQUARE), timeout_s=0.25, use_cache=False)
    assert (one.is_floor, one.step_s is not None) == (True, True)
    assert one.notes[0].startswith(
        "The TPU compiler took longer than 0.25 s to compile 'slow/train' for v3-8, and was ended."
    )
    assert one.notes[1] == NOTE
    with pytest.raises(NoAnswerError, match=r"^The TPU compiler took longer than 0.25 s"):
        tpu.max_batch_size(slow, "v3-8", input_specs=(SQUARE, SQUARE), timeout_s=0.25, use_cache=False)


def test_what_the_compiler_refuses_is_an_error():
    with pytest.raises(PlanError, match=r"^The TPU compiler refuses 'foreign/train' for v3-8"):
        tpu.plan(foreign, tpu="v3-8", input_specs=(SQUARE, SQUARE))


@pytest.mark.parametrize("width", [64, 1024])
def test_a_floor_lies_below_the_forecast(width: int):
    specs = (jax.ShapeDtypeStruct((width, width), "bfloat16"), jax.ShapeDtypeStruct((8 * width, width), "bfloat16"))
    (one,) = tpu.plan(step, tpu="v5e-1", input_specs=specs)
    target = target_named("v5e-1")
    least = least_of(work_of(tpu.program.of(step, specs)), target)
    computing_s = sum(count / rate_of(dtype, target) for dtype, count in least.flops.items())
    assert one.flops == pytest.approx(least.flops.total())
    assert one.step_s is not None and one.hbm_bytes is not None
    assert max(computing_s, least.crossing_bytes / target.hbm_bytes_per_s) < one.step_s
    assert sum(buffer.bytes for buffer in least.memory) <= one.hbm_bytes
