"""The record of a fit: what Keras's logs say, without a wait of its own, and without a seam after a kill."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
import checkpointed_fit
from anytpu.engine import twin
from anytpu.errors import SettingError
from anytpu.train import fit_record
from anytpu.train.record import RunReader
from forked import python
from keras_oracle import CLASSES, PLACES, EveryLog, classifier, compiled, rows, run

X, Y = rows()
FIT = {"batch_size": 7, "epochs": 3, "verbose": 0, "validation_data": (X[:20], Y[:20])}


def recorded(folder: Path, place: str = "virtual", **settings: Any) -> tuple[RunReader, Any]:
    history = run(classifier, lambda model: model.fit(X, Y, run_dir=folder, **{**FIT, **settings}), place)[1]
    return RunReader(folder), history


@pytest.mark.parametrize("place", PLACES)
def test_the_points_are_the_losses_of_their_steps(tmp_path: Path, monkeypatch, place: str):
    monkeypatch.setattr(fit_record, "MIN_POINT_S", 0.0)
    every = EveryLog()
    record, history = recorded(tmp_path / "run", place, callbacks=[every])
    # Keras's logs are means over the epoch so far, and the last batch of each epoch is shorter.
    steps, counts = -(-len(X) // 7), np.minimum(7 * np.arange(1, 8), len(X))
    means = np.array([log["loss"] for log in every.logs]).reshape(3, steps)
    losses = np.diff(means * counts, axis=1, prepend=0) / np.diff(counts, prepend=0)
    assert [point["step"] for point in record.points] == [*range(1, 3 * steps + 1)]
    np.testing.assert_allclose([point["loss"] for point in record.points], losses.ravel(), rtol=1e-4)
    assert [point["metrics"]["accuracy"] for point in record.points] == [log["accuracy"] for log in every.logs]
    # The ends of epochs are Keras's history.
    assert {name: [epoch["metrics"][name] for epoch in record.epochs] for name in history.history} == history.history
    for epoch in record.epochs:
        assert set(epoch["spent"]) == {"steps", "input", "compile", "save", "evaluation", "callbacks"}
        assert sum(epoch["spent"].values()) == pytest.approx(epoch["duration_s"], rel=1e-6)
    assert (record.state, record.about["virtual"]) == ("ended", True)
    assert record.about["mfu"] == "not computed: virtual cores share this machine's CPU"
    assert record.about["settings"]["batch_size"] == 7
    assert record.about["data"] == {"x": f"float32 {X.shape}", "y": f"int32 {Y.shape}"}


def test_an_epoch_with_a_record_waits_once(tmp_path: Path, monkeypatch):
    """As test_round_trips.py counts it: the calls come first, then one transfer."""
    events: list[str] = []
    for owner, name in ((twin.TwinBackend, "get"), (twin.TwinBackend, "wait"), (twin._TwinExecutable, "steps")):
        original = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *a, original=original, name=name: events.append(name) or original(*a), raising=True
        )
    settings = {"epochs": 4, "validation_data": None, "callbacks": [Ends(events)]}
    record, _ = recorded(tmp_path, "twin", **settings)
    assert events[-3:] == ["steps", "steps", "get"]
    assert len(record.epochs) == 4


class Ends(keras.callbacks.Callback):
    takes_many_steps = True

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.events.clear()


def test_a_killed_fit_continues_its_record_without_a_seam(tmp_path: Path):
    def train(folder: Path, *words: str) -> int:
        command = [*python(), checkpointed_fit.__file__, str(folder), "arrays", *words]
        return subprocess.run(command, capture_output=True, text=True).returncode

    assert train(tmp_path / "whole") == 0
    assert train(tmp_path / "run", "--kill-after", "12") == -9
    killed = RunReader(tmp_path / "run")
    assert killed.state == "killed"
    assert train(tmp_path / "run") == 0
    whole, record = RunReader(tmp_path / "whole"), RunReader(tmp_path / "run")
    began = [event["step"] for event in record.events if event["event"] == "began"]
    assert began[0] == 0 < began[1] <= 12
    assert [epoch["metrics"] for epoch in record.epochs] == [epoch["metrics"] for epoch in whole.epochs]
    assert sum(point["steps"] for point in record.points) >= record.points[-1]["step"] == whole.points[-1]["step"]
    steps = [point["step"] for point in record.points]
    assert steps == sorted(set(steps))
    assert (record.state, record.unreadable) == ("ended", 0)


def test_a_second_fit_continues_the_count_of_steps(tmp_path: Path):
    def twice(model: Any) -> None:
        for epochs in (1, 2):
            model.fit(X, Y, batch_size=8, epochs=epochs, initial_epoch=epochs - 1, verbose=0, run_dir=tmp_path)

    run(classifier, twice, "virtual")
    record = RunReader(tmp_path)
    assert [(event["event"], event["step"]) for event in record.events] == [
        ("began", 0),
        ("ended", 6),
        ("began", 6),
        ("ended", 12),
    ]
    assert [(epoch["epoch"], epoch["step"]) for epoch in record.epochs] == [(1, 6), (2, 12)]


@pytest.mark.parametrize("steps_per_execution", [None, 3])
def test_the_step_that_is_not_finite_is_named(tmp_path: Path, steps_per_execution: int | None):
    x = X.copy()
    x[30] = np.nan

    def make() -> Any:
        model = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(CLASSES)])
        return compiled(model, steps_per_execution=steps_per_execution or "auto")

    run(make, lambda m: m.fit(x, Y, batch_size=8, shuffle=False, verbose=0, run_dir=tmp_path), "virtual")
    record = RunReader(tmp_path)
    bad = [(event["names"], event["where"]) for event in record.events if event["event"] == "not finite"]
    assert bad[0] == (["loss"], "step 4")


def test_an_error_of_the_program_is_written_down(tmp_path: Path):
    def fail(epoch: int, logs: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        recorded(tmp_path, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=fail)])
    assert [(event["event"], event["step"], event.get("reason")) for event in RunReader(tmp_path).events] == [
        ("began", 0, None),
        ("failed", 7, "KeyError: 'mine'"),
    ]


def test_a_folder_that_cannot_be_written_is_one_warning_and_the_same_training(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be written: Not a directory. It gets no more lines") as warned:
        history = run(classifier, lambda m: m.fit(X, Y, run_dir=tmp_path / "file" / "run", **FIT), "virtual")[1]
    assert sum("The record" in str(warning.message) for warning in warned) == 1, [str(w.message) for w in warned]
    assert history.history == recorded(tmp_path / "run")[1].history


def test_a_model_of_keras_own_loop_is_refused():
    def make() -> Any:
        return compiled(keras.Sequential([keras.layers.Dense(CLASSES)], name="mine"), run_eagerly=True)

    with pytest.warns(UserWarning), pytest.raises(SettingError) as caught:
        run(make, lambda model: model.fit(X, Y, run_dir="run7"), "virtual")
    assert str(caught.value) == (
        "run_dir='run7' records the compiled loop, and 'mine' does not use it: run_eagerly=True. "
        "Remove that, or pass callbacks=[keras.callbacks.CSVLogger(...)]"
    )


def test_a_checkpointer_and_a_bucket_name_the_folder(tmp_path: Path):
    saved = tpu.Checkpointer(tmp_path / "run7", every_steps=2)
    run(classifier, lambda model: model.fit(X, Y, checkpoint_dir=saved, **FIT), "virtual")
    assert RunReader(tmp_path / "run7").about["checkpoints"] == str(tmp_path / "run7")
