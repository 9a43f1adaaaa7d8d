"""Keras's callbacks and a user's own, against plain Keras."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from keras_oracle import PLACES, EveryLog, agrees, classifier, close, compiled, rows, run, values

X, Y = rows()
FIT = {"batch_size": 8, "epochs": 4, "verbose": 0}
VALIDATED = {**FIT, "validation_data": (X[:16], Y[:16])}


def test_early_stopping_restores_the_best_weights():
    def train(model):
        stop = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=10.0, restore_best_weights=True)
        return model.fit(X, Y, callbacks=[stop], **VALIDATED), stop.stopped_epoch

    result = agrees(classifier, train, places=PLACES)
    assert result[1] == 1


def test_learning_rates_change_between_epochs():
    def train(model):
        callbacks = [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=1, min_delta=10.0),
        ]
        return model.fit(X, Y, callbacks=callbacks, **FIT), float(model.optimizer.learning_rate.numpy())

    agrees(classifier, train, places=PLACES)


def test_csv_and_lambda_callbacks(tmp_path: Path):
    def train(model):
        told: list[Any] = []
        written = tmp_path / "log.csv"
        callbacks = [
            keras.callbacks.CSVLogger(written),
            keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: told.append((epoch, sorted(logs)))),
        ]
        model.fit(X, Y, callbacks=callbacks, **VALIDATED)
        table = list(csv.reader(written.read_text().splitlines()))
        return table[0], [[float(cell) for cell in line] for line in table[1:]], told

    agrees_text(train)


def agrees_text(train: Any) -> None:
    """As `agrees`, for results that hold strings beside numbers."""
    _, theirs = run(classifier, train, None)
    for place in PLACES:
        _, ours = run(classifier, train, place)
        flat, other = keras.tree.flatten(ours), keras.tree.flatten(theirs)
        assert [leaf for leaf in flat if isinstance(leaf, str)] == [leaf for leaf in other if isinstance(leaf, str)]
        close(
            [leaf for leaf in flat if not isinstance(leaf, str)], [leaf for leaf in other if not isinstance(leaf, str)]
        )


@pytest.mark.parametrize(("save_freq", "weights_only"), [("epoch", True), (3, False)])
def test_checkpoints(tmp_path: Path, save_freq: Any, weights_only: bool):
    ending = "weights.h5" if weights_only else "keras"

    def train(model):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        name = f"{{epoch}}-{{batch}}.{ending}" if save_freq == 3 else f"{{epoch}}.{ending}"
        save = keras.callbacks.ModelCheckpoint(folder / name, save_weights_only=weights_only, save_freq=save_freq)
        model.fit(X, Y, callbacks=[save], **{**FIT, "epochs": 2})
        fresh = keras.models.clone_model(classifier())
        loaded = []
        for path in sorted(folder.iterdir()):
            if weights_only:
                fresh.load_weights(path)
                loaded.append(fresh.get_weights())
            else:
                loaded.append(keras.models.load_model(path).get_weights())
        return len(loaded), loaded

    assert agrees(classifier, train)[0] == (2 if save_freq == "epoch" else 4)


def test_only_the_best_is_saved(tmp_path: Path):
    def train(model):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.weights.h5"
        best = keras.callbacks.ModelCheckpoint(path, "val_loss", save_best_only=True, save_weights_only=True)
        model.fit(X, Y, callbacks=[best], **VALIDATED)
        model.load_weights(path)
        return model.evaluate(X, Y, verbose=0)

    agrees(classifier, train, places=PLACES)


@pytest.mark.filterwarnings("ignore:the loss is nan")
def test_training_ends_on_nan():
    spoiled = X.copy()
    spoiled[20] = np.nan

    def train(model):
        history = model.fit(spoiled, Y, callbacks=[keras.callbacks.TerminateOnNaN()], shuffle=False, **FIT)
        return len(history.epoch), int(model.optimizer.iterations.numpy())

    agrees(classifier, train)


class Watcher(keras.callbacks.Callback):
    """Notes every call with its step and the names of its logs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def note(self, name: str, step: int, logs: Any) -> None:
        self.calls.append((name, step, sorted(logs or {})))

    def on_train_batch_begin(self, batch, logs=None):
        self.note("train begin", batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self.note("train end", batch, logs)

    def on_test_batch_begin(self, batch, logs=None):
        self.note("test begin", batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self.note("test end", batch, logs)

    def on_predict_batch_end(self, batch, logs=None):
        self.note("predict end", batch, None)

    def on_epoch_begin(self, epoch, logs=None):
        self.note("epoch begin", epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch end", epoch, logs)

    def on_train_end(self, logs=None):
        self.note("train over", 0, logs)


def test_every_call_comes_as_from_keras():
    def train(model):
        watcher = Watcher()
        model.fit(X, Y, callbacks=[watcher], **{**VALIDATED, "epochs": 2})
        model.evaluate(X, Y, batch_size=8, callbacks=[watcher], verbose=0)
        model.predict(X, batch_size=8, callbacks=[watcher], verbose=0)
        return watcher.calls

    expected = run(classifier, train, None)[1]
    for place in PLACES:
        assert run(classifier, train, place)[1] == expected


class Writer(keras.callbacks.Callback):
    """Reads and writes weights and the learning rate between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[Any] = []

    def on_train_batch_end(self, batch, logs=None):
        if batch % 2 == 0:
            weights = self.model.get_weights()
            self.read.append(weights)
            self.model.set_weights([weight * 0.9 for weight in weights])
        if batch == 3:
            self.model.optimizer.learning_rate = 0.01
        if batch == 4:
            self.model.layers[0].kernel.assign(self.model.layers[0].kernel * 2)


def test_a_callback_that_writes_between_steps():
    def train(model):
        writer = Writer()
        return model.fit(X, Y, callbacks=[writer], **FIT), writer.read

    agrees(classifier, train, places=PLACES)


def test_a_callback_that_looks_past_itself_at_the_model():
    """Plain Keras shows a model only to `self.model`; here a closure reads and writes what is there too."""

    def train(model):
        read = []

        def closed(batch, logs):
            read.append([np.array(variable.value) for variable in model.trainable_variables])
            if batch == 2:
                model.layers[0].bias.assign(np.full(8, 0.5, "float32"))

        class Open(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                assert self.model is model
                closed(batch, logs)

        through = (
            Open()
            if "_anytpu_trainer" not in vars(model)
            else keras.callbacks.LambdaCallback(on_train_batch_end=closed)
        )
        return model.fit(X, Y, callbacks=[through], **FIT), read

    agrees(classifier, train, places=PLACES)


class StopAt(keras.callbacks.Callback):
    """Stops training after a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.step:
            self.model.stop_training = True


@pytest.mark.parametrize("where", [0, 2])
def test_stop_training_acts_at_once(where: int):
    def train(model):
        history = model.fit(X, Y, callbacks=[StopAt(where)], **FIT)
        return history, int(model.optimizer.iterations.numpy()), model.fit(X, Y, **FIT)

    assert agrees(classifier, train, places=PLACES)[1] == where + 1


def test_stopping_an_evaluation_and_a_prediction():
    class Stop(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = batch == 1

        def on_predict_batch_end(self, batch, logs=None):
            self.model.stop_predicting = batch == 1

    def use(model):
        scores = model.evaluate(X, Y, batch_size=8, callbacks=[Stop()], verbose=0)
        return scores, model.predict(X, batch_size=8, callbacks=[Stop()], verbose=0)

    assert agrees(classifier, use, places=PLACES)[1].shape[0] == 16


def test_a_callback_uses_a_plain_model():
    plain = compiled(keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)]))
    before = values(plain)
    seen = []

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((plain.evaluate(X, Y, verbose=0), plain.predict(X, verbose=0)))

    run(classifier, lambda model: model.fit(X, Y, callbacks=[Looks()], **FIT), "twin")
    close(seen[-1], (plain.evaluate(X, Y, verbose=0), plain.predict(X, verbose=0)))
    close(values(plain)[:2], before[:2])


def test_a_callback_list_of_ones_own():
    def train(model):
        every = EveryLog()
        model.fit(X, Y, callbacks=keras.callbacks.CallbackList([every], add_history=True, model=model), **FIT)
        return every.logs

    agrees(classifier, train, places=PLACES)


def test_validation_keeps_to_its_own_callbacks():
    """A callback that overrides only test methods sees each test step, and lets training run many steps a call."""

    class Tests(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.steps = []

        def on_test_batch_end(self, batch, logs=None):
            self.steps.append(batch)

    tests = Tests()
    run(classifier, lambda model: model.fit(X, Y, callbacks=[tests], **VALIDATED), "virtual")
    assert tests.steps == [0, 1] * 4


def test_backup_and_restore(tmp_path: Path):
    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("lost")

    def train(model):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        with pytest.raises(RuntimeError, match="lost"):
            model.fit(X, Y, callbacks=[keras.callbacks.BackupAndRestore(folder), Fails()], shuffle=False, **FIT)
        model.set_weights([0 * weight for weight in model.get_weights()])
        return model.fit(X, Y, callbacks=[keras.callbacks.BackupAndRestore(folder)], shuffle=False, **FIT)

    agrees(classifier, train)


def test_a_callback_that_takes_many_steps_does_not_slow_training():
    class Safe(keras.callbacks.Callback):
        takes_many_steps = True

        def __init__(self):
            super().__init__()
            self.steps = []

        def on_train_batch_end(self, batch, logs=None):
            self.steps.append(tpu.step_logs(self.model)["loss"].shape[0])

    safe = Safe()
    fit = {**FIT, "epochs": 30}
    run(classifier, lambda model: model.fit(X, Y, callbacks=[safe], **fit), "virtual")
    assert sum(safe.steps) == 30 * 6
    assert max(safe.steps) > 1
