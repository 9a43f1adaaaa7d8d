from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from anytpu.planning import runs
from anytpu.planning.records import OpTime, StepTime
from anytpu.planning.records.target import target_named
from anytpu.planning.run_log import FIRST_CALLS, RunLog, start
from anytpu.planning.runs import MeasuredRun
from anytpu.program.program import REPLICA_AXIS, ROWS, Program
from anytpu.system.cores import Core

V3 = target_named("v3-8")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Keep this user's own files in a folder of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("ANYTPU_RECORD_RUNS", "1")
    return tmp_path / "anytpu"


def program(rows: int = 8, mode: str = "train", replicas: int | None = None) -> Program:
    batch = jax.ShapeDtypeStruct((rows, 4), jnp.float32)

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        total = batch.sum()
        return state + (total if replicas is None else jax.lax.psum(total, REPLICA_AXIS)), ()

    return Program(f"sum/{mode}", step, jnp.zeros(()), batch, ROWS, replicas, mode)


def run(**changes: Any) -> MeasuredRun:
    plain = MeasuredRun(
        "a", "2026-11-21T06:00:00+00:00", "sum/train", "p", "v3", "v3-8", 8, 64, 10, 0.2, 8, {"jax": "0.10.2"}
    )
    return dataclasses.replace(plain, **changes)


def time_of(step_s: float) -> StepTime:
    return StepTime((), step_s, (step_s / 2, step_s * 2))


def test_a_program_is_known_by_its_shapes():
    assert runs.digest(program()) == runs.digest(dataclasses.replace(program(), name="another"))
    others = [program(rows=16), program(mode="infer"), program(replicas=8)]
    assert len({runs.digest(each) for each in [program(), *others]}) == 4


def products(dtype: Any, function: Any = jnp.tanh) -> Program:
    """Return a product in some precision, of float32 arrays that give a float32 state."""

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        made = jax.jit(lambda x: function(x @ state.astype(dtype)))(batch.astype(dtype))
        return state, made.astype(jnp.float32)

    return Program("net/train", step, jnp.zeros((4, 4)), jax.ShapeDtypeStruct((8, 4), jnp.float32), ROWS)


def test_a_program_is_known_by_its_precision_and_its_operations():
    assert runs.digest(products(jnp.float32)) == runs.digest(products(jnp.float32))
    others = [products(jnp.float32), products(jnp.bfloat16), products(jnp.float32, jnp.exp)]
    assert len({runs.digest(each) for each in others}) == 3


def test_the_hosts_call_is_shared_by_the_steps_of_the_run(home: Path):
    call = OpTime("host dispatch", "host", "host", 0.001)
    planned = StepTime((OpTime("fusion", "fusion", "matmul", 0.2), call), 0.201, (0.1, 0.4))
    runs.remember(program(), V3, planned, steps_per_execution=50)
    for steps, expected_s in ((1, 0.25), (10, 0.205), (50, 0.201)):
        runs.append(runs.runs_file(), run(run=str(steps), program=runs.digest(program()), steps_per_execution=steps))
        assert runs.read_runs()[-1].predicted_s == pytest.approx(expected_s)


def test_runs_come_back(home: Path):
    written = [run(), run(run="b", step_s=0.3)]
    for measured in written:
        runs.append(runs.runs_file(), measured)
    assert runs.runs_file() == home / "runs.jsonl"
    assert runs.read_runs() == written


def test_the_last_line_of_a_run_counts(home: Path):
    runs.append(runs.runs_file(), run(step_s=0.3, calls=8))
    runs.append(runs.runs_file(), run(step_s=0.2, calls=16))
    assert [(run.step_s, run.calls) for run in runs.read_runs()] == [(0.2, 16)]


def test_what_was_predicted_before_or_since_stands_beside_it(home: Path):
    runs.append(runs.runs_file(), run(program=runs.digest(program())))
    assert runs.read_runs()[0].error is None
    runs.remember(program(), V3, time_of(0.25))
    (one,) = runs.read_runs()
    assert one.predicted_s == 0.25
    assert one.error == pytest.approx(0.25)
    runs.remember(program(), target_named("v3-32"), time_of(9.0))
    assert runs.read_runs() == [one]
    runs.remember(program(), V3, time_of(0.22))
    assert runs.read_runs()[0].predicted_s == 0.22


def test_lines_that_cannot_be_read_are_skipped(home: Path):
    runs.append(runs.runs_file(), run())
    with runs.runs_file().open("a") as file:
        file.write('{"run": "cut o\n[]\n{"run": "b"}\n')
        file.write(json.dumps({**dataclasses.asdict(run(run="c")), "step_s": "fast"}) + "\n")
        file.write(json.dumps({**dataclasses.asdict(run(run="d")), "step_s": -1.0}) + "\n")
        file.write(json.dumps({**dataclasses.asdict(run(run="e")), "of_a_later_version": 1}) + "\n")
    file = str(runs.runs_file())
    with pytest.warns(UserWarning) as told:
        assert [record.run for record in runs.read_runs()] == ["a", "e"]
    assert [str(warning.message) for warning in told] == [
        f"line 2 of {file!r} is left out: Unterminated string starting at: line 1 column 9 (char 8); so are 4 more of "
        "its lines. Delete the damaged lines to stop this warning. All other lines are used."
    ]
    assert len(runs.read_runs()) == 2  # and it is said once


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("devices", True, "True, not a positive integer"),
        ("devices", 0, "0, not a positive integer"),
        ("calls", 8.0, "8.0, not a positive integer"),
        ("batch_size", "64", "'64', not a positive integer or null"),
        ("step_s", float("nan"), "nan, not a number of 0 or more"),
        ("step_s", 10**400, f"{'1' + '0' * 79}..., not a number of 0 or more"),
        ("predicted_s", float("inf"), "inf, not a number of 0 or more or null"),
        ("name", ["a"], "['a'], not a text of one line"),
        ("name", "\ud800", "'\\ud800', not a text of one line"),
        ("chip", "v3\x1b[31m", "'v3\\x1b[31m', not a text of one line"),
        ("versions", ["jax"], "['jax'], not names and versions"),
        ("versions", {"jax": 1}, "{'jax': 1}, not names and versions"),
    ],
)
def test_a_line_is_believed_only_when_it_is_whole(home: Path, name: str, value: Any, why: str):
    runs.append(runs.runs_file(), run())
    with runs.runs_file().open("a") as file:
        file.write(json.dumps({**dataclasses.asdict(run(run="b")), name: value}) + "\n")
    with pytest.warns(UserWarning) as told:
        assert [record.run for record in runs.read_runs()] == ["a"]
    assert str(told[0].message) == (
        f"line 2 of {str(runs.runs_file())!r} is left out: {name!r} is {why}. Delete the damaged lines to "
        "stop this warning. All other lines are used."
    )


def test_a_line_that_a_killed_process_left_costs_no_other(home: Path):
    runs.append(runs.runs_file(), run())
    with runs.runs_file().open("a") as file:
        file.write('{"run": "b", "ti')
    runs.append(runs.runs_file(), run(run="c"))
    with pytest.warns(UserWarning, match="^line 2 of"):
        assert [record.run for record in runs.read_runs()] == ["a", "c"]


def test_without_files_there_are_no_runs(home: Path):
    assert runs.read_runs() == []


def test_nobody_remembers_when_it_is_switched_off(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANYTPU_RECORD_RUNS", "0")
    runs.remember(program(), V3, time_of(0.25))
    assert not home.exists()


def test_a_plan_goes_on_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("ANYTPU_RECORD_RUNS", "1")
    runs.remember(program(), V3, time_of(0.25))
    assert runs.read_runs() == []


def tell(log: RunLog, durations_s: list[float], steps: int = 10) -> None:
    for duration_s in durations_s:
        log(steps, duration_s * steps)


def test_a_run_is_written_after_some_calls_and_when_they_have_doubled(home: Path):
    log = RunLog(run(step_s=0.0, calls=0))
    tell(log, [0.1] * (FIRST_CALLS - 1))
    assert not home.exists()
    tell(log, [0.1] * (1 + FIRST_CALLS + 5))
    lines = runs.runs_file().read_text().splitlines()
    assert [json.loads(line)["calls"] for line in lines] == [FIRST_CALLS, 2 * FIRST_CALLS]


def test_the_median_of_full_calls_is_the_step(home: Path):
    log = RunLog(run(step_s=0.0))
    log(1, 5.0)  # The first call of a run tries how long a step takes.
    tell(log, [0.1, 0.11, 0.12, 0.13, 9.0])
    measured = log.to_run()
    assert measured.step_s == pytest.approx(0.12)
    assert (measured.steps_per_execution, measured.calls) == (10, 6)
    assert measured.time[:3] == "202"


def test_a_run_of_few_calls_is_not_worth_a_line(home: Path):
    log = RunLog(run())
    tell(log, [0.1, 0.1])
    log.write()
    assert not home.exists()
    tell(log, [0.1])
    log.write()
    log.write()
    assert len(runs.runs_file().read_text().splitlines()) == 1


def test_what_is_known_of_a_run_before_its_first_call():
    cores = tuple(Core(index, "cpu", virtual=True) for index in range(3))
    log = start(program(rows=24), cores)
    tell(log, [0.1])
    measured = log.to_run()
    assert (measured.chip, measured.system, measured.devices) == ("virtual core", "virtual core", 3)
    assert (measured.name, measured.batch_size) == ("sum/train", 24)
    assert measured.versions["jax"] == jax.__version__
    assert measured.program == runs.digest(program(rows=24))


TRAINS = """
import anytpu as tpu
import keras, numpy as np
from anytpu.planning import runs
strategy = tpu.connect("virtual", cores=2)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", {settings})
x = np.zeros((64 * {steps}, 4), "float32")
model.fit(x, x[:, :2], batch_size=64, epochs=2, verbose=0)
print(runs.digest(tpu.program.of(model, batch_size=64)))
"""


def trained(folder: Path, settings: str, record: str, steps: int = 40) -> tuple[str, list[MeasuredRun]]:
    """Train in a process of its own; return the digest of what a plan would plan, and the runs that were kept."""
    environment = {"XDG_DATA_HOME": str(folder), "ANYTPU_RECORD_RUNS": record, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", TRAINS.format(settings=settings, steps=steps)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), runs.read_runs(folder / "anytpu/runs.jsonl", folder / "none")


def test_a_real_run_is_kept_and_found_by_the_program_that_a_plan_makes(tmp_path: Path):
    # Runs on virtual cores are kept only where somebody asks for them.
    planned, (kept,) = trained(tmp_path, "steps_per_execution=4", "all", steps=400)
    assert kept.program == planned
    assert (kept.chip, kept.devices, kept.batch_size) == ("virtual core", 2, 64)
    assert kept.steps_per_execution == 4
    assert kept.calls >= 3
    assert 0 < kept.step_s < 1


def test_a_home_that_cannot_be_written_stops_no_run(tmp_path: Path):
    (tmp_path / "anytpu").write_text("a file where the folder should be")
    assert trained(tmp_path, "steps_per_execution=2", "all", steps=40)[0]
