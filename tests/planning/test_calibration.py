from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from anytpu.errors import SettingError
from anytpu.planning import runs
from anytpu.planning.calibration import LocalCalibration, LocalFactor, calibrate, correct, record_and_correct, save
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import OpTime, StepTime
from anytpu.planning.records.target import target_named
from anytpu.planning.runs import MeasuredRun
from anytpu.program.program import ROWS, Program

V3 = target_named("v3-8")
TIME = StepTime((), 0.1, (0.08, 0.12), evidence=("the compiler said so",))


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("ANYTPU_RECORD_RUNS", "1")
    return tmp_path / "anytpu"


def run(number: int, ratio: float, program: str = "", **changes: Any) -> MeasuredRun:
    """Return a run that took `ratio` times as long as predicted."""
    plain = MeasuredRun(
        run=str(number),
        time="2026-11-21T06:00:00+00:00",
        name="net/train",
        program=program or f"program {number}",
        chip="v3",
        system="v3-8",
        devices=8,
        batch_size=64,
        steps_per_execution=10,
        step_s=0.1 * ratio,
        calls=20,
        versions={},
        predicted_s=0.1,
    )
    return dataclasses.replace(plain, **changes)


def predicted_s(program: Program) -> float | None:
    """Return the stored prediction for a run of a program on v3-8."""
    runs.append(runs.runs_file(), run(0, 1.0, program=runs.digest(program), predicted_s=None))
    return runs.read_runs()[-1].predicted_s


def factor_of(*given: MeasuredRun) -> LocalFactor:
    (factor,) = calibrate(given).factors
    return factor


def test_few_programs_correct_little():
    factors = [factor_of(*(run(number, 1.3) for number in range(count))).factor for count in (1, 2, 6, 100)]
    assert factors == [pytest.approx(1.3 ** (count / (count + 2))) for count in (1, 2, 6, 100)]
    assert factors == sorted(factors)


def test_many_runs_of_one_program_count_as_one_program():
    factor = factor_of(*(run(number, 1.3, program="same") for number in range(12)))
    assert factor.factor == pytest.approx(1.3 ** (1 / 3))
    assert (factor.programs, factor.runs) == (1, 12)


def test_the_mean_is_one_of_ratios():
    factor = factor_of(run(0, 2.0), run(1, 0.5))
    assert factor.factor == pytest.approx(1.0)
    assert factor.spread > 0.25


def test_programs_that_agree_narrow_the_spread():
    alike = factor_of(*(run(number, 1.2) for number in range(20)))
    apart = factor_of(*(run(number, 1.2 * (1.5 if number % 2 else 1 / 1.5)) for number in range(20)))
    assert alike.spread < 0.1 < apart.spread


def test_each_chip_has_its_own():
    found = calibrate([run(0, 1.3), run(1, 0.8, chip="v5e")])
    assert [factor.chip for factor in found.factors] == ["v3", "v5e"]
    assert [entry.factor > 1 for entry in found.factors] == [True, False]


def test_runs_without_a_prediction_are_shown_and_correct_nothing():
    given = [run(0, 1.3, predicted_s=None)]
    assert calibrate(given) == LocalCalibration(tuple(given), ())


def test_a_plan_is_corrected_and_says_so(home: Path):
    save(calibrate([run(number, 1.3, program=f"program {number % 4}") for number in range(12)]))
    factor = math.exp(4 * math.log(1.3) / 6)
    time = correct(TIME, V3)
    assert (time.step_s, time.correction) == (pytest.approx(0.1 * factor), pytest.approx(factor))
    assert time.evidence == (
        "the compiler said so",
        "corrected by x1.19 from 12 of your own runs (4 programs)",
    )
    assert time.interval_s[0] < time.step_s < time.interval_s[1]


def test_the_interval_moves_along_while_programs_are_few(home: Path):
    save(calibrate([run(0, 1.3)]))
    time = correct(TIME, V3)
    assert time.interval_s == (pytest.approx(0.8 * time.step_s), pytest.approx(1.2 * time.step_s))
    assert time.evidence[-1] == "corrected by x1.09 from 1 of your own runs (1 program)"


def test_a_wide_interval_narrows_with_programs(home: Path):
    save(calibrate([run(number, 1.3) for number in range(20)]))
    wide = dataclasses.replace(TIME, interval_s=(0.05, 0.2))
    time = correct(wide, V3)
    assert time.interval_s[1] / time.step_s < 1.2
    assert time.step_s / time.interval_s[0] < 1.2


def test_no_correction_reaches_below_what_the_peaks_allow(home: Path):
    save(calibrate([run(0, 0.7)]))
    product = OpTime("product", "fusion", "matmul", 0.1, least_s=0.085)
    low_s, high_s = correct(dataclasses.replace(TIME, ops=(product,)), V3).interval_s
    assert low_s == pytest.approx(0.085)
    assert high_s == pytest.approx(correct(TIME, V3).interval_s[1])


def test_runs_give_no_upper_end_to_an_interval_without_one(home: Path):
    save(calibrate([run(number, 1.3) for number in range(20)]))
    time = correct(dataclasses.replace(TIME, interval_s=(0.05, math.inf)), V3)
    assert time.interval_s[1] == math.inf


def test_nothing_is_corrected_without_runs(home: Path):
    assert correct(TIME, V3) is TIME
    save(calibrate([run(0, 1.3)]))
    assert correct(TIME, target_named("v5e-8")) is TIME


def test_a_new_calibration_replaces_the_old_one(home: Path):
    save(calibrate([run(0, 1.3)]))
    assert correct(TIME, V3).step_s > TIME.step_s
    path = save(calibrate([]))
    path.touch()
    assert correct(TIME, V3) is TIME


def test_predictions_are_kept_before_they_are_corrected(home: Path):
    save(calibrate([run(0, 1.3)]))
    batch = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    program = Program("sum/train", lambda s, b: (s, b), jnp.zeros(()), batch, ROWS)
    time = record_and_correct(program, TIME, V3, PlanSettings())
    assert predicted_s(program) == TIME.step_s < time.step_s


def small(rows: int = 8) -> Program:
    batch = jax.ShapeDtypeStruct((rows, 4), jnp.float32)
    return Program("sum/train", lambda s, b: (s, b), jnp.zeros(()), batch, ROWS)


def test_the_wait_for_the_input_is_the_users(home: Path):
    save(calibrate([run(number, 2.0) for number in range(100)]))
    device_s = correct(TIME, V3).step_s
    assert device_s > 0.19
    for input_s, expected_s in ((10.0, 10.0), (0.15, device_s)):
        time = record_and_correct(small(), TIME, V3, PlanSettings(input_examples_per_s=8 / input_s))
        assert time.step_s == pytest.approx(expected_s)
        assert time.ops[-1].kind == "input"
        assert time.ops[-1].time_s == pytest.approx(max(0.0, expected_s - device_s))
        assert time.interval_s[0] < time.step_s < time.interval_s[1]


def test_only_what_was_asked_for_is_kept_and_without_its_input(home: Path):
    for settings in (PlanSettings(is_trial=True), PlanSettings(options={"xla_tpu_scoped_vmem_limit_kib": "65536"})):
        assert record_and_correct(small(), TIME, V3, settings) == TIME
        assert not home.exists()
    assert record_and_correct(small(), TIME, V3, PlanSettings(input_examples_per_s=1.0)).step_s == 8.0
    assert predicted_s(small()) == TIME.step_s


def test_from_files_to_a_corrected_plan(home: Path):
    batch = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    program = Program("sum/train", lambda s, b: (s, b), jnp.zeros(()), batch, ROWS)
    runs.append(runs.runs_file(), run(0, 2.0, program=runs.digest(program), predicted_s=None))
    assert calibrate().factors == ()
    record_and_correct(program, TIME, V3, PlanSettings())
    found = calibrate()
    assert [run.error for run in found.runs] == [pytest.approx(-0.5)]
    assert save(found) == home / "calibration.json"
    assert correct(TIME, V3).step_s == pytest.approx(0.1 * 2 ** (1 / 3))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("{}", "it has no list named 'factors'"),
        ("[" * 100_000, "it nests too deeply"),
        ('{"factors": [1]}', "it is 1, not an object of names and values"),
        (
            '{"factors": [{"chip": "v3", "factor": "1"}]}',
            "'factor' is '1', not a number of 0 or more",
        ),
        ('{"factors": [{"chip": "v3"}]}', "'factor' is missing"),
        (
            '{"factors": [{"chip": "v3", "factor": 0, "spread": 0.1, "programs": 1, "runs": 1}]}',
            "'factor' is 0, not a positive number",
        ),
    ],
)
def test_a_file_that_cannot_be_read(home: Path, text: str, why: str):
    home.mkdir()
    path = home / "calibration.json"
    path.write_text(text)
    with pytest.raises(SettingError) as caught:
        correct(TIME, V3)
    assert str(caught.value) == (
        f"the corrections in {str(path)!r} cannot be read ({why}); delete the file, or compute them again with anytpu "
        "plan --calibrate"
    )


def test_a_file_larger_than_any_that_was_written(home: Path):
    home.mkdir()
    path = home / "calibration.json"
    with path.open("wb") as sparse:
        sparse.truncate(2**30)
    with pytest.raises(SettingError) as caught:
        correct(TIME, V3)
    assert str(caught.value) == (
        f"the corrections in {str(path)!r} cannot be read (Has 1,073,741,824 bytes or more; the maximum is "
        "67,108,864); delete the file, or compute them again with anytpu plan --calibrate"
    )


def test_a_folder_that_cannot_be_written(home: Path):
    home.write_text("a file where the folder should be")
    with pytest.raises(SettingError) as caught:
        save(calibrate([]))
    assert str(caught.value) == (
        f"the corrections cannot be written to {str(home / 'calibration.json')!r}: File exists; name another folder "
        "with XDG_DATA_HOME"
    )
