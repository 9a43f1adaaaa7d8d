from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import anytpu as tpu  # isort: skip
import keras

from anytpu.bench import JOBS, Task
from anytpu.errors import SettingError
from anytpu.system.cores import Address
from anytpu.system.probes import Reason

# The package's name `compare` is the function, so the module is imported by its path.
compare_module: Any = importlib.import_module("anytpu.bench.compare")


def small_job(strategy: Any) -> Task:
    """Add three numbers."""
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model: Any = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    return model, x, x.sum(axis=1), 8


def test_every_system_takes_its_turn_and_learns_the_same():
    turns: list[tuple[str, int]] = []
    comparison = tpu.compare(small_job, rounds=2, on_epoch=lambda *turn: turns.append(turn))
    names = [measurement.name for measurement in comparison.measurements]
    assert names[:2] == ["1 virtual core", "8 virtual cores"]
    assert turns == [(name, number) for number in range(3) for name in names]
    assert (comparison.job, comparison.batch_size) == ("Add three numbers", 8)
    first, *others = comparison.measurements
    assert [len(measurement.epoch_s) for measurement in comparison.measurements] == [2] * len(names)
    assert (first.cores, first.is_virtual, first.examples) == (1, True, 40)
    assert sorted(first.metrics) == ["loss", "mae"]
    for other in others:
        assert other.metrics == pytest.approx(dict(first.metrics), rel=1e-5)
    assert len(names) + len(comparison.absent) == 4


@pytest.mark.parametrize("rounds", [0, True, 1.5])
def test_rounds_that_are_none(rounds: Any):
    with pytest.raises(SettingError) as caught:
        tpu.compare(small_job, rounds=rounds)
    assert str(caught.value) == f"rounds must be a positive integer, not {rounds!r}"


@pytest.mark.parametrize(("job", "near"), [("mnits", "mnist"), (3, "digits")])
def test_a_job_by_name(job: Any, near: str):
    with pytest.raises(SettingError) as caught:
        tpu.compare(job)
    assert str(caught.value) == (
        "compare takes a function of a strategy that returns (model, x, y, batch_size), not "
        f"{job!r}; did you mean anytpu.bench.JOBS[{near!r}]?"
    )


@pytest.mark.parametrize("task", [None, (1, 2, 3, 4), (keras.Sequential(), 2, 3, 4)])
def test_a_job_that_returns_something_else(task: Any):
    with pytest.raises(SettingError) as caught:
        tpu.compare(lambda strategy: task)
    assert str(caught.value) == (
        "a job takes a strategy and returns (model, x, y, batch_size), with a model compiled in "
        f"strategy.scope() and a positive batch_size; this job returned {task!r}"
    )


@pytest.mark.parametrize("name", list(JOBS))
def test_the_jobs_fit_their_rows(name: str):
    strategy = tpu.connect("virtual", cores=1)
    model, x, y, batch_size = JOBS[name](strategy)
    assert model.compiled
    assert len(x) == len(y) >= batch_size
    assert model.input_shape == (None, *x.shape[1:])
    assert model.compute_output_shape((batch_size, *x.shape[1:]))[0] == batch_size
    again, *_ = JOBS[name](strategy)
    for one, other in zip(model.weights, again.weights, strict=True):
        assert np.array_equal(one.value, other.value)


@pytest.mark.parametrize(("gpus", "name"), [(1, "1 GPU"), (2, "2 GPUs")])
def test_what_is_there_and_what_is_not(gpus: int, name: str, monkeypatch: pytest.MonkeyPatch):
    absent = Reason("TPU", "this machine has no TPU chip")
    monkeypatch.setattr(compare_module, "probe_gpu", lambda cores: Address("local", gpus))
    monkeypatch.setattr(compare_module, "probe_tpu", lambda cores: absent)
    here, reasons = compare_module.local_systems()
    assert [(system.name, system.address.kind, system.address.cores) for system in here] == [
        ("1 virtual core", "virtual", 1),
        ("8 virtual cores", "virtual", 8),
        (name, "local", gpus),
    ]
    assert reasons == (absent,)


def test_a_tpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compare_module, "probe_gpu", lambda cores: Reason("GPU", "none"))
    monkeypatch.setattr(compare_module, "probe_tpu", lambda cores: Address("local", 8))
    here, _ = compare_module.local_systems()
    assert here[-1].name == "8 TPU cores"
