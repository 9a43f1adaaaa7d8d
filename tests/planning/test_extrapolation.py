"""Plans of what the compiler does not finish, from two compilations with fewer blocks."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import keras
import pytest

import anytpu as tpu
from anytpu.errors import NoAnswerError, PlanError
from anytpu.planning.compiler import compilation
from anytpu.planning.forecasts import extrapolation, forecast
from anytpu.planning.forecasts.compiled import SCHEDULED
from anytpu.planning.forecasts.extrapolation import (
    BOUNDED,
    BY_SCHEDULES,
    MEMORY_ERROR,
    OFF,
    about_text,
    choose_depths,
    extrapolate,
)
from anytpu.planning.records import MemoryPart, MemoryUse, OpTime, Prediction, StepTime
from anytpu.units import format_seconds
from planning.predictions import prediction

# `Variable.numpy()` of Keras 3.15 does this with NumPy 2; its `__array__` takes no `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

BY = "the TPU compiler (libtpu 0.0.42.1)"


def found(blocks: int, memory: int = 100, **changes: Any) -> Prediction:
    """Return what the compiler would say of so many blocks: 10 ms, and 2 ms each for a product and 1 ms for a copy."""
    ops = (
        OpTime("head", "fusion", "matmul", 0.010, flops=1e9, bytes=10.0, least_s=0.005),
        OpTime("blocks", "fusion", "matmul", 0.002 * blocks, flops=2e9 * blocks, bytes=8.0 * blocks, least_s=0.001),
        OpTime("copies", "copy", "memory", 0.001 * blocks, bytes=4.0 * blocks),
    )
    step_s = 1.1 * sum(op.time_s for op in ops)
    time = StepTime(ops, step_s, (0.9 * step_s, 1.2 * step_s), ("a kernel",), ("fitted",))
    held = MemoryUse(memory + 10 * blocks, 1000, 2000, padding_waste_bytes=blocks)
    return prediction(time=time, memory=held, predicted_by=BY, peak_flops_per_s=197e12, compile_s=1.5, **changes)


def floor(step_s: float = 0.001) -> Prediction:
    time = StepTime((), step_s, (step_s, math.inf))
    notes = ("It took too long.", "A floor.")
    return prediction(time=time, memory=MemoryUse(1, 1000), predicted_by="a floor", notes=notes, basis="floor")


def test_more_blocks_lie_on_the_line_of_two():
    one = extrapolate(found(2), found(4), (2, 4), 12, floor())
    assert one.time is not None and one.memory is not None
    assert one.time.step_s == pytest.approx(1.1 * (0.010 + 0.003 * 12))
    assert sum(op.time_s for op in one.time.ops) == pytest.approx(0.010 + 0.003 * 12)
    assert sum(op.flops for op in one.time.ops) == pytest.approx(1e9 + 2e9 * 12)
    assert (one.memory.peak_bytes, one.memory.limit_bytes, one.memory.padding_waste_bytes) == (220, 1000, 12)
    assert [(op.name, op.kind, op.priced_by) for op in one.time.ops[3:]] == [
        ("8 further blocks", "matmul", "extrapolation"),
        ("8 further blocks", "memory", "extrapolation"),
    ]


def test_it_says_that_it_is_extrapolated():
    one = extrapolate(found(2), found(4), (2, 4), 12, floor())
    assert (one.basis, one.predicted_by, one.compile_s) == ("extrapolated", f"{BY}, extrapolated", 3.0)
    assert one.notes == (
        "It took too long.",
        "Extrapolated: 2 and 4 of 12 equal blocks were compiled, which take 17.6 ms and 24.2 ms a step. No code "
        f"was made of the whole program, so the interval is wider.{MEMORY_ERROR} It takes at least 1 ms a step.",
    )
    assert one.time is not None
    assert (one.time.unpriced, one.time.evidence) == (("a kernel",), ("fitted",))


def test_the_interval_is_wider_by_the_part_that_was_not_compiled():
    one = extrapolate(found(2), found(4), (2, 4), 12, floor())
    assert one.time is not None
    step_s = one.time.step_s
    off = math.exp(OFF * (1 - found(4).time.step_s / step_s))  # type: ignore[union-attr]
    assert one.time.interval_s == (pytest.approx(0.9 * step_s / off), pytest.approx(1.2 * step_s * off))
    endless = found(4)
    assert endless.time is not None
    endless = dataclasses.replace(endless, time=dataclasses.replace(endless.time, interval_s=(0.02, math.inf)))
    one = extrapolate(found(2), endless, (2, 4), 12, floor())
    assert one.time is not None and one.time.interval_s[1] == math.inf


def test_it_never_lies_below_the_floor():
    one = extrapolate(found(2), found(4), (2, 4), 12, floor(0.5))
    assert one.time is not None
    assert (one.time.step_s, one.time.interval_s[0]) == (0.5, 0.5)


def test_what_will_not_fit_has_no_time():
    one = extrapolate(found(2), found(4), (2, 4), 120, floor())
    assert (one.time, one.fits, one.hbm_bytes) == (None, False, 1300)
    assert one.notes[1] == (
        "Extrapolated: 2 and 4 of 120 equal blocks were compiled. No code was made of the whole program, so "
        f"the interval is wider.{MEMORY_ERROR} It takes at least 1 ms a step."
    )


@pytest.mark.parametrize(("scheduled_bytes", "peak_bytes"), [(150, 180), (200, 220), (300, 300)])
def test_the_schedule_bounds_the_memory(scheduled_bytes: int, peak_bytes: int):
    """The line has 220 bytes, of which 30 are code."""
    weights = MemoryPart("weights", 100)
    scheduled = prediction(memory=MemoryUse(scheduled_bytes, 1000, parts=(weights,)), compile_s=0.5)
    few, more = found(2), found(4)
    assert few.memory is not None and more.memory is not None
    few = dataclasses.replace(few, memory=dataclasses.replace(few.memory, parts=(MemoryPart("code", 10),)))
    more = dataclasses.replace(more, memory=dataclasses.replace(more.memory, parts=(MemoryPart("code", 14),)))
    whole = extrapolate(few, more, (2, 4), 12, floor(), scheduled)
    assert (whole.fits, whole.compile_s) == (True, 3.5)
    assert whole.memory is not None and whole.memory.peak_bytes == peak_bytes
    if peak_bytes == 180:
        assert whole.memory.parts == (weights, MemoryPart("code", 30))
    assert whole.notes[1] == (
        "Extrapolated: 2 and 4 of 12 equal blocks were compiled, which take 17.6 ms and 24.2 ms a step. No code was "
        "made of the whole program, so the interval is wider."
        f"{BOUNDED} It takes at least 1 ms a step."
    )


def test_a_deep_model_whose_schedule_does_not_fit_needs_no_code(monkeypatch: pytest.MonkeyPatch):
    asked, stages = compilation.ask_child, []

    def ask(request: Any, timeout_s: float, job: str) -> Any:
        stages.append(request.stage)
        if request.stage == "code":
            raise NoAnswerError("It took too long.")
        return asked(request, timeout_s, job)

    monkeypatch.setattr(compilation, "ask_child", ask)
    (large,) = tpu.plan(network(9), 2**27, "v5e-1", use_cache=False)
    assert (large.fits, large.time) == (False, None)
    # The other schedules are those of the search for the largest batch.
    assert stages[0] == "code" and set(stages[1:]) == {"schedule"} and large.largest_batch
    assert large.notes[:2] == ("It took too long.", SCHEDULED)


@pytest.mark.parametrize("count", range(6, 200))
def test_less_is_compiled_than_there_is(count: int):
    few, more = choose_depths(count)
    assert 1 < few < more < count
    assert more == 2 * few or more == 2 * few + 1


def network(blocks: int) -> keras.Model:
    parts = [keras.layers.Dense(128, "relu") for _ in range(blocks)]
    model = keras.Sequential([keras.Input((128,)), *parts, keras.layers.Dense(10)], name="deep")
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A compiler that does not finish programs of more than 16 arrays; returns how many each one that it got had."""
    asked, sizes = compilation.ask_child, []

    def ask(request: Any, timeout_s: float, job: str) -> Any:
        sizes.append(len(request.arguments))
        if len(request.arguments) > 16:
            raise NoAnswerError("It took too long.")
        return asked(request, timeout_s, job)

    monkeypatch.setattr(compilation, "ask_child", ask)
    return sizes


def test_a_deep_model_is_planned_by_two_shallow_ones(impatient: list[int]):
    said: list[str] = []
    (one,) = tpu.plan(network(8), 256, "v5e-1", use_cache=False, progress=said.append, steps_per_execution=1)
    assert (one.basis, one.is_floor, one.fits) == ("extrapolated", False, True)
    assert said[2:] == [
        "compiling deep/train for v5e-1 up to its schedule instead",
        "compiling it with 2 and 4 of its 8 equal blocks instead",
    ]
    whole, schedule, few, more = impatient
    assert whole == schedule > more > few
    assert one.flops == 2 * 256 * (128 * 128 * (3 * 8 - 1) + 3 * 128 * 10)
    low_s, high_s = one.interval_s or (0.0, 0.0)
    assert one.step_s is not None and 0 < low_s < one.step_s < high_s < math.inf
    assert one.notes[0] == "It took too long."
    assert one.time is not None
    assert sum(op.name == "waiting for the host" for op in one.time.ops) == 1  # once, not in each compilation


def test_a_slow_input_is_waited_for_once(impatient: list[int]):
    (slow,) = tpu.plan(network(8), 264, "v5e-1", use_cache=False, input_examples_per_s=100.0)
    assert slow.time is not None
    assert slow.time.step_s == sum(op.time_s for op in slow.time.ops) == pytest.approx(2.64)
    assert slow.time.interval_s[0] == pytest.approx(2.64 * math.exp(-0.1))


def test_a_model_without_equal_blocks_has_a_floor(impatient: list[int]):
    parts = [keras.layers.Dense(size) for size in range(100, 180, 8)]
    model = keras.Sequential([keras.Input((64,)), *parts])
    model.compile("sgd", "mse")
    (one,) = tpu.plan(model, 256, "v5e-1", use_cache=False)
    assert (one.basis, one.notes[0]) == ("floor", "It took too long.")
    assert len(impatient) == 2  # The second compilation ends with the schedule.


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, float]]:
    """Every compilation counts as long, and none is on the disk; returns the stage and the time limit of each."""
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(forecast, "LONG_S", 0.0)
    asked, stages = compilation.ask_child, []

    def ask(request: Any, timeout_s: float, job: str) -> Any:
        stages.append((request.stage, timeout_s))
        return asked(request, timeout_s, job)

    monkeypatch.setattr(compilation, "ask_child", ask)
    return stages


def test_a_long_compilation_is_told_of_when_it_begins(asked_for: list[tuple[str, float]]):
    said: list[str] = []
    model = network(8)
    (one,) = tpu.plan(model, 256, "v5e-1", progress=said.append)
    assert one.basis == "compiled"
    assert [re.sub(r"[\d.]+ (µs|s)\b", "TIME", line) for line in said[2:]] == [
        "v5e-1: at least TIME a step, by its products and bytes alone; its compilation takes about TIME",
        "v5e-1: about TIME a step, by the schedules of two models with fewer blocks; the whole one follows",
    ]
    assert asked_for == [("schedule", 300), ("schedule", 300), ("code", 600)]
    tpu.plan(model, 256, "v5e-1", progress=said.append)
    assert (len(said), len(asked_for)) == (6, 3)  # All answers are on the disk.


def test_nothing_is_told_of_a_compilation_that_never_begins(
    asked_for: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(extrapolation, "EQUATION_S", 10.0)
    said: list[str] = []
    (one,) = tpu.plan(network(12), 256, "v5e-1", progress=said.append, timeout_s=1000)
    assert (one.basis, len(asked_for)) == ("extrapolated", 3)
    assert said[2:] == [
        "compiling deep/train for v5e-1 up to its schedule instead",
        "compiling it with 2 and 4 of its 12 equal blocks instead",
    ]
    monkeypatch.setattr("anytpu._env.libtpu_version", lambda: None)
    for blocks in (8, 12):
        said.clear()
        (one,) = tpu.plan(network(blocks), 256, "v5e-1", progress=said.append, timeout_s=1000)
        assert (one.basis, len(asked_for)) == ("floor", 3)
        assert not any("follows" in line or "takes" in line for line in said)


@pytest.mark.parametrize("equation_s", [0.001, 10.0])
def test_two_schedules_are_the_answer_if_nothing_else_ends(monkeypatch: pytest.MonkeyPatch, equation_s: float):
    asked = compilation.ask_child

    def ask(request: Any, timeout_s: float, job: str) -> Any:
        if request.stage == "code" or len(request.arguments) > 16:
            raise NoAnswerError("It took too long.")
        return asked(request, timeout_s, job)

    monkeypatch.setattr(compilation, "ask_child", ask)
    monkeypatch.setattr(extrapolation, "EQUATION_S", equation_s)
    (one,) = tpu.plan(network(12), 256, "v5e-1", use_cache=False, timeout_s=1000)
    assert (one.basis, one.fits) == ("extrapolated", True) and one.step_s is not None
    assert re.fullmatch(r"the schedule of the TPU compiler \(.*\), extrapolated", one.predicted_by)
    times = r"which take [\d.]+ µs and [\d.]+ µs a step"
    assert re.fullmatch(
        rf"Extrapolated: 2 and 4 of 12 equal blocks were compiled, {times}. No code was made of the whole program, so "
        rf"the interval is wider.{BY_SCHEDULES} It takes at least [\d.]+ µs a step.",
        one.notes[1],
    )


def test_two_schedules_are_asked_for_once(asked_for: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch):
    real = compilation.ask_child

    def ask(request: Any, timeout_s: float, job: str) -> Any:
        if request.stage == "code" or len(request.arguments) > 16:
            asked_for.append((request.stage, timeout_s))
            raise NoAnswerError("It took too long.")
        return real(request, timeout_s, job)

    monkeypatch.setattr(compilation, "ask_child", ask)
    said: list[str] = []
    (one,) = tpu.plan(network(8), 256, "v5e-1", use_cache=False, progress=said.append)
    assert (one.basis, one.notes[0]) == ("extrapolated", "It took too long.")
    few, more, *rest = asked_for
    assert (few, more) == (("schedule", 300), ("schedule", 300))
    # All blocks, up to the code and up to the schedule; then the code of the few.
    assert rest == [("code", 600), ("schedule", 600), ("code", 600)]
    assert one.step_s is not None and f"about {format_seconds(one.step_s)} a step, by the schedules" in said[3]


def test_a_rough_time_is_in_words():
    assert [about_text(seconds) for seconds in (20, 60, 89, 90, 640)] == [
        "20 s",
        "a minute",
        "a minute",
        "2 minutes",
        "11 minutes",
    ]


def test_what_the_compiler_refuses_stays_an_error(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> Any:
        raise PlanError("The TPU compiler refuses it.")

    monkeypatch.setattr(compilation, "ask_child", refuse)
    with pytest.raises(PlanError, match=r"^The TPU compiler refuses it.$"):
        tpu.plan(network(8), 256, "v5e-1", use_cache=False)
