"""The record of a run: what is written is read again, also while it grows, after a kill and when it is damaged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import FileError, SettingError
from anytpu.train.record import RunReader, reading

STRANGE = 'a "b" <script>alert(1)</script> \N{PARTY POPPER} \\ \x1b[2J\n'


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_loop_of_ones_own_is_recorded(tmp_path: Path):
    folder = tmp_path / STRANGE.replace("/", "")
    values: list[Any] = [0.5, np.float32(0.25), jnp.array(0.125), np.inf]
    with tpu.RunRecord(folder, settings={STRANGE: STRANGE, "rate": 0.1}) as record:
        for step, loss in enumerate(values, start=1):
            record.log(step, epoch=1, examples=8, loss=loss, **{STRANGE: step / 2, "curve": np.zeros(3)})
    run = RunReader(folder)
    assert run.state == "ended"
    assert [point.get("loss") for point in run.points] == [0.5, 0.25, 0.125, None]
    assert [point["metrics"] for point in run.points] == [{STRANGE: step / 2} for step in (1, 2, 3, 4)]
    # When the first step began is not known.
    assert [(point.get("steps"), point.get("examples_per_s", 0) > 0) for point in run.points] == [
        (None, False),
        *[(1, True)] * 3,
    ]
    assert [(event["event"], event["step"]) for event in run.events] == [("began", 0), ("not finite", 4), ("ended", 4)]
    assert run.about["settings"] == {STRANGE: STRANGE, "rate": 0.1}
    assert run.about["versions"]["anytpu"] == tpu.__version__


def test_a_value_that_is_not_finite_is_one_event_until_it_is_finite_again(tmp_path: Path):
    with tpu.RunRecord(tmp_path) as record:
        for step, loss in enumerate([1.0, np.nan, np.nan, 1.0, np.inf], start=1):
            record.log(step, loss=loss, other=np.nan)
    bad = [(event["step"], event["names"]) for event in RunReader(tmp_path).events if event["event"] == "not finite"]
    assert bad == [(1, ["other"]), (2, ["loss"]), (5, ["loss"])]


def test_a_loss_that_jumps_is_named(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), tpu.RunRecord(tmp_path) as record:
        for step in range(1, 11):
            record.log(step, loss=9.0 if step == 8 else 1.0)
        print(1 / 0)
    _, spike, failed = RunReader(tmp_path).events
    assert (spike["event"], spike["step"], spike["loss"], spike["usual"]) == ("spike", 8, 9.0, 1.0)
    assert (failed["event"], failed["step"], failed["reason"]) == ("failed", 10, "ZeroDivisionError: division by zero")


KILLED = """
import os, sys, anytpu as tpu
record = tpu.RunRecord(sys.argv[1])
for step in range(int(sys.argv[2]), 1000):
    record.log(step, loss=1 / step)
    if step == int(sys.argv[3]):
        print("killed", flush=True)
        os.kill(os.getpid(), 9)
"""


def test_a_killed_run_loses_nothing_and_the_next_one_replaces_its_last_steps(tmp_path: Path):
    def killed(first: int, last: int) -> None:
        words = [sys.executable, "-c", KILLED, str(tmp_path), str(first), str(last)]
        assert subprocess.run(words, capture_output=True, text=True).stdout == "killed\n"

    killed(1, 50)
    run = RunReader(tmp_path)
    assert (run.state, [point["step"] for point in run.points]) == ("killed", [*range(1, 51)])
    # A line that is cut, as by a machine that goes away.
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step":51,"loss":0.0')
    run.update()
    assert (len(run.points), run.unreadable) == (50, 0)
    killed(41, 60)
    for reader in (run, RunReader(tmp_path)):
        reader.update()
        assert [point["step"] for point in reader.points] == [*range(1, 61)]
        assert [event["step"] for event in reader.events] == [0, 40]
        assert reader.unreadable == 1


def test_a_record_that_runs_has_one_writer(tmp_path: Path):
    with tpu.RunRecord(tmp_path) as record:
        record.log(1, loss=1.0)
        assert RunReader(tmp_path).state == "running"
        with pytest.warns(UserWarning) as warned, tpu.RunRecord(tmp_path) as second:
            second.log(1, loss=2.0)
            second.log(2, loss=2.0)
    assert [str(warning.message) for warning in warned] == [
        f"The record of the run in {str(tmp_path)!r} cannot be written: another run writes to it. It gets no more "
        "lines; the training goes on."
    ]
    assert [point["loss"] for point in RunReader(tmp_path).points] == [1.0]


@pytest.mark.parametrize("case", ["full", "file", "newer"])
def test_a_record_that_cannot_be_written_is_one_warning(tmp_path: Path, case: str):
    folder, reason = tmp_path / "run", "Not a directory"
    if case == "file":
        (tmp_path / "file").write_text("")
        folder = tmp_path / "file" / "run"
    elif case == "newer":
        folder.mkdir()
        (folder / "run.json").write_text('{"format": 2}')
        (folder / "metrics.jsonl").write_text("")
        reason = "run.json is of format 2, and this release of anytpu knows formats up to 1"
        with pytest.raises(FileError) as caught:
            RunReader(folder)
        assert str(caught.value) == f"the record in {str(folder)!r} cannot be read: {reason}"
    with pytest.warns(UserWarning) as warned, tpu.RunRecord(folder) as record:
        if case == "full":
            record.log(1, loss=1.0)
            reason = "No space left on device"
            assert record._descriptor is not None
            os.dup2(os.open("/dev/full", os.O_WRONLY), record._descriptor)
        for step in range(2, 5):
            record.log(step, loss=1.0)
    assert [str(warning.message) for warning in warned] == [
        f"The record of the run in {str(folder)!r} cannot be written: {reason}. It gets no more lines; the training "
        "goes on."
    ]


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl"])
def test_files_of_the_user_stay_as_they_are(tmp_path: Path, name: str):
    (tmp_path / name).write_text('{"mine": 1}\n')
    with pytest.warns(UserWarning) as warned, tpu.RunRecord(tmp_path) as record:
        record.log(1, loss=1.0)
        record.log(2, loss=1.0)
    assert [str(warning.message) for warning in warned] == [
        f"The record of the run in {str(tmp_path)!r} cannot be written: {name} there is not of a record of a run; name "
        "another run_dir. It gets no more lines; the training goes on."
    ]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: '{"mine": 1}\n'}


def test_an_empty_file_becomes_a_record(tmp_path: Path):
    (tmp_path / "metrics.jsonl").touch()
    for _ in range(2):
        with tpu.RunRecord(tmp_path) as record:
            record.log(1, loss=1.0)
    assert RunReader(tmp_path).state == "ended"


def deleted() -> Any:
    array = jnp.array(1.0)
    array.delete()
    return array


UNWRITABLE: dict[str, Any] = {
    "donated": ({"loss": deleted}, "Array has been deleted.*"),
    "huge": ({"loss": lambda: 10**400}, "int too large to convert to float"),
    "rate": ({"examples": lambda: float("nan")}, "Out of range float values are not JSON compliant.*"),
    "long": ({f"{n:0>100}": lambda: 1.0 for n in range(3000)}, "a line has 3..,... bytes, of at most 262,144"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_a_value_that_cannot_be_written_does_not_end_the_loop(tmp_path: Path, case: str):
    values, reason = UNWRITABLE[case]
    settings: Any = {("a", 1): 2}
    with pytest.warns(UserWarning) as warned, tpu.RunRecord(tmp_path, settings=settings) as record:
        record.log(1, loss=1.0)
        strange: Any = {"step": np.int64(2), **{name: make() for name, make in values.items()}}
        record.log(**strange)
        assert RunReader(tmp_path).state == "running"
        record.log(3, loss=1.0)
    (text,) = [str(warning.message) for warning in warned]
    begin = re.escape(f"The record of the run in {str(tmp_path)!r} cannot be written: ")
    assert re.fullmatch(rf"{begin}{reason}\. It gets no more lines; the training goes on\.", text)
    run = RunReader(tmp_path)
    assert (run.state, [point["step"] for point in run.points], run.unreadable) == ("ended", [1], 0)
    assert run.about["settings"] == {"('a', 1)": 2}


def test_a_record_of_many_metrics_and_long_settings_is_read(tmp_path: Path):
    with tpu.RunRecord(tmp_path, settings={"vocabulary": "x" * 2**20}) as record:
        metrics: Any = {f"layer{n}/norm": 0.5 for n in range(4200)}
        record.log(1, loss=1.0, **metrics)
    run = RunReader(tmp_path)
    assert (len(run.points[0]["metrics"]), run.unreadable) == (4200, 0)
    assert len(run.about["settings"]["vocabulary"]) == 2**20


def test_a_child_of_the_process_does_not_keep_the_record(tmp_path: Path):
    with tpu.RunRecord(tmp_path) as record:
        record.log(1, loss=1.0)
        assert record._descriptor is not None
        inherited = os.dup(record._descriptor)  # as a fork does
    with tpu.RunRecord(tmp_path) as record:
        record.log(2, loss=1.0)
    os.close(inherited)
    assert [point["step"] for point in RunReader(tmp_path).points] == [1, 2]


@pytest.mark.parametrize("folder", ["", "gs://bucket/run7", 7])
def test_a_record_needs_a_folder(folder: Any):
    with pytest.raises(SettingError) as caught:
        tpu.RunRecord(folder)
    assert str(caught.value) == f"the record of a run needs the path of a folder of this machine, not {folder!r}"


def test_there_is_no_record(tmp_path: Path):
    with pytest.raises(FileError) as caught:
        RunReader(tmp_path)
    assert str(caught.value) == (
        f"there is no record of a run in {str(tmp_path)!r}: pass the run_dir, or the checkpoint_dir, of a fit"
    )


def test_lines_of_other_forms_are_counted_and_left_out(tmp_path: Path):
    good = '{"step": 3, "loss": 0.5, "metrics": {"a": 1, "b": "x", "c": NaN}, "step_s": "y", "epoch": 1e999}'
    bad = ["[1]", "{", '{"step": -1}', '{"step": 1.5}', '{"step": true}', '{"step": 1, "event": 3}', "\0\0", "[" * 999]
    (tmp_path / "metrics.jsonl").write_text("\n".join([good, *bad, f'{{"step": {"9" * 5000}}}', ""]))
    (tmp_path / "run.json").write_text("[1, 2")
    run = RunReader(tmp_path)
    assert run.points == [{"step": 3, "loss": 0.5, "metrics": {"a": 1}, "spent": {}}]
    assert (run.unreadable, run.about, run.state) == (len(bad) + 1, {}, "killed")


def test_a_long_record_is_read_by_its_events_and_by_some_of_its_points(tmp_path: Path):
    count = 60_000
    texts = [f'{{"step":{step},"loss":0.5,"step_s":0.1}}\n' for step in range(1, count + 1)]
    texts[777] = '{"event":"spike","step":778}\n'
    texts[40_000] = '{"event":"epoch","step":40001,"epoch":1}\n'
    (tmp_path / "metrics.jsonl").write_text("".join(['{"event":"began","step":0}\n', *texts]))
    run = RunReader(tmp_path)
    assert [(event["event"], event["step"]) for event in run.events] == [("began", 0), ("spike", 778)]
    assert [epoch["step"] for epoch in run.epochs] == [40001]
    steps = [point["step"] for point in run.points]
    assert steps == sorted(steps)
    assert reading.MAX_POINTS * 0.9 < len(steps) <= 2 * reading.MAX_POINTS
    assert (steps[-1], max(np.diff(steps)) < 60) == (count, True)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(f'{{"step":{count + 1}}}\n{{"event":"began","step":{count // 2}}}\n')
    run.update()
    assert run.points[-1]["step"] <= count // 2
    # A folder that is used anew.
    (tmp_path / "metrics.jsonl").write_text(texts[0])
    run.update()
    assert [point["step"] for point in run.points] == [1]
    (tmp_path / "metrics.jsonl").write_text("".join(texts[1:3]))
    run.update()
    assert [point["step"] for point in run.points] == [2, 3]


def test_values_that_are_computed_later_are_written_later(tmp_path: Path):
    class Later:
        is_there = False

        def is_ready(self) -> bool:
            return self.is_there

        def __float__(self) -> float:
            assert self.is_there
            return 0.5

    later = Later()
    with warnings.catch_warnings(), tpu.RunRecord(tmp_path) as record:
        record.log(1, loss=later)
        record.log(2, loss=0.25)
        assert [line.get("event") for line in lines(tmp_path)] == ["began"]
        later.is_there = True
        record.log(3, loss=0.125)
        assert [line.get("loss") for line in lines(tmp_path)] == [None, 0.5, 0.25, 0.125]
