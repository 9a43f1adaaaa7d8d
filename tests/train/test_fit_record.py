"""The record of a fit: what Keras's logs say, without a wait of its own, and without a seam after a kill."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
import checkpointed_fit
from anytpu.engine import twin
from anytpu.errors import SettingError
from anytpu.train import fit_record
from anytpu.train.checkpoint.saver import Saver
from anytpu.train.record import RunReader
from forked import python
from keras_oracle import CLASSES, PLACES, EveryLog, classifier, compiled, rows, run

X, Y = rows()
FIT = {"batch_size": 7, "epochs": 3, "verbose": 0, "validation_data": (X[:20], Y[:20])}


def recorded(folder: Path, place: str = "virtual", **settings: Any) -> tuple[RunReader, Any]:
    history = run(classifier, lambda model: model.fit(X, Y, run_dir=folder, **{**FIT, **settings}), place)[1]
    return RunReader(folder), history


@pytest.mark.parametrize("place", PLACES)
def test_the_points_are_the_logs_of_keras(tmp_path: Path, monkeypatch, place: str):
    monkeypatch.setattr(fit_record, "MIN_POINT_S", 0.0)
    every = EveryLog()
    record, history = recorded(tmp_path / "run", place, callbacks=[every])
    assert [point["step"] for point in record.points] == [*range(1, 3 * -(-len(X) // 7) + 1)]
    points = [{"loss": point["loss"], **point["metrics"]} for point in record.points]
    assert points == [{name: float(value) for name, value in logs.items()} for logs in every.logs]
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

    def train(model: Any) -> None:
        validation = (np.full_like(X, np.nan), Y)
        with pytest.warns(UserWarning, match="x has NaN or infinity, first in row 30"):
            model.fit(x, Y, batch_size=8, shuffle=False, verbose=0, validation_data=validation, run_dir=tmp_path)

    run(make, train, "virtual")
    bad = [event for event in RunReader(tmp_path).events if event["event"] == "not finite"]
    assert [(event["names"], event["where"]) for event in bad] == [(["loss"], "step 4"), (["val_loss"], "")]


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


class Slow(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.05)
        return X[:8], Y[:8]


def test_each_epoch_has_its_own_wait_for_input(tmp_path: Path):
    run(classifier, lambda model: model.fit(Slow(), epochs=3, verbose=0, run_dir=tmp_path), "virtual")
    epochs = RunReader(tmp_path).epochs
    assert [0.2 <= epoch["spent"]["input"] <= epoch["duration_s"] for epoch in epochs] == [True] * 3


def test_a_schedule_without_a_config_is_recorded(tmp_path: Path):
    class NoConfig(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return 0.1

    def make() -> Any:
        rate: Any = NoConfig()
        return compiled(classifier(), optimizer=keras.optimizers.SGD(rate))

    run(make, lambda model: model.fit(X, Y, verbose=0, run_dir=tmp_path), "virtual")
    assert RunReader(tmp_path).state == "ended"


class Ragged(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["ragged"] = [1, [2, 3]]


def test_logs_of_other_kinds_are_left_out(tmp_path: Path):
    class Own(keras.Model):
        def train_step(self, *arguments: Any) -> Any:
            _, state = super().train_step(*arguments)
            return {"my": jnp.array(jnp.nan)}, state

    def make() -> Any:
        inputs = keras.Input((X.shape[1],))
        return compiled(Own(inputs, keras.layers.Dense(CLASSES)(inputs)))

    run(make, lambda m: m.fit(X, Y, verbose=0, run_dir=tmp_path, callbacks=[Ragged()]), "virtual")
    run(classifier, lambda m: m.fit(X, Y, verbose=0, checkpoint_dir=tmp_path / "b", callbacks=[Ragged()]), "virtual")
    assert RunReader(tmp_path / "b").state == "ended"
    record = RunReader(tmp_path)
    assert [event.get("where") for event in record.events] == [None, "step 1", None]
    assert record.state == "ended"


def test_accumulated_gradients_do_not_change_the_count_of_steps(tmp_path: Path):
    def twice(model: Any) -> None:
        for _ in range(2):
            model.fit(X, Y, batch_size=8, verbose=0, run_dir=tmp_path)

    def make() -> Any:
        return compiled(classifier(), optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))

    run(make, twice, "virtual")
    assert [event["step"] for event in RunReader(tmp_path).events] == [0, 6, 6, 12]


def test_a_stop_in_the_last_callback_keeps_the_line_of_the_epoch(tmp_path: Path):
    class Stop(keras.callbacks.Callback):
        takes_many_steps = True

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            signal.raise_signal(signal.SIGTERM)

    def train(callbacks: list[Any]) -> None:
        saved = tpu.Checkpointer(tmp_path, every_steps=1000)
        run(classifier, lambda model: model.fit(X, Y, checkpoint_dir=saved, callbacks=callbacks, **FIT), "virtual")

    with pytest.raises(SystemExit):
        train([Stop()])
    train([])
    assert [(epoch["epoch"], epoch["step"]) for epoch in RunReader(tmp_path).epochs] == [(1, 7), (2, 14), (3, 21)]


def test_a_last_save_that_fails_is_a_fit_that_failed(tmp_path: Path, monkeypatch):
    def fail(saver: Any) -> None:
        raise OSError("full")

    monkeypatch.setattr(Saver, "finish", fail)
    with pytest.raises(OSError, match="full"):
        run(classifier, lambda model: model.fit(X, Y, checkpoint_dir=tmp_path, **FIT), "virtual")
    assert RunReader(tmp_path).state == "failed"


def test_a_list_of_callbacks_of_the_user_stays_as_it_is(tmp_path: Path):
    def train(model: Any) -> None:
        callbacks = keras.callbacks.CallbackList([], add_history=True, model=model, epochs=1, steps=1)
        model.fit(X, Y, verbose=0, run_dir=tmp_path, callbacks=callbacks)
        assert [type(callback).__name__ for callback in callbacks.callbacks] == ["History"]

    run(classifier, train, "virtual")


def test_mfu_counts_the_operations_of_the_training_step(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(fit_record, "_peak_flops_per_s", lambda trainer: 1.0)
    monkeypatch.setattr(fit_record, "MIN_POINT_S", 0.0)

    class Evaluates(keras.callbacks.Callback):
        def __init__(self, evaluates: bool) -> None:
            super().__init__()
            self.evaluates = evaluates

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.evaluates and self.model is not None:
                self.model.evaluate(X, Y, batch_size=4, verbose=0)

    def train(model: Any) -> None:
        for folder, evaluates in (("a", False), ("b", True)):
            model.fit(X, Y, batch_size=8, verbose=0, run_dir=tmp_path / folder, callbacks=[Evaluates(evaluates)])

    run(classifier, train, "virtual")
    spent = RunReader(tmp_path / "b").points[-1]["spent"]
    assert 0 < spent["evaluation"] < spent["all"]
    whole, evaluated = (
        {round(point["mfu"] * point["step_s"]) for point in RunReader(tmp_path / name).points[:4]} for name in "ab"
    )
    assert whole == evaluated
