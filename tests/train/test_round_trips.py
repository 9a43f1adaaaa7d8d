"""How often an epoch of resident data waits for its backend: at most once, when its logs are read."""

from __future__ import annotations

import threading
from typing import Any

import keras
import numpy as np
import pytest

from anytpu.engine import twin
from keras_oracle import CLASSES, classifier, compiled, rows, run

X, Y = rows()
FIT = {"batch_size": 7, "epochs": 4, "verbose": 0}


class Epochs(keras.callbacks.Callback):
    """Begins a list of events for each epoch, and compares the logs with the results of the metrics."""

    takes_many_steps = True

    def __init__(self, events: list[list[str]], compares: bool = False):
        super().__init__()
        self.events, self.compares = events, compares

    def on_epoch_begin(self, epoch, logs=None):
        self.events.append([])

    def on_epoch_end(self, epoch, logs=None):
        if self.compares:
            model: Any = self.model
            assert logs == {name: float(value) for name, value in model.get_metrics_result().items()}


@pytest.fixture
def events(monkeypatch):
    """Return the list of the epochs' lists of calls and transfers, in the thread of the fit."""
    lists: list[list[str]] = [[]]

    def count(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def counted(self, *arguments):
            if threading.current_thread() is threading.main_thread():
                lists[-1].append(name)
            return original(self, *arguments)

        monkeypatch.setattr(owner, name, counted)

    for name in ("put", "get", "wait"):
        count(twin.TwinBackend, name)
    count(twin._TwinExecutable, "steps")
    return lists


def seven_metrics() -> keras.Model:
    outputs = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(1, activation="sigmoid")])
    names = ["accuracy", "mse", "mae", keras.metrics.Precision(), keras.metrics.Recall(), "hinge", "poisson"]
    return compiled(outputs, loss="binary_crossentropy", metrics=names)


def names_twice() -> keras.Model:
    """Return a model whose metrics have the same names."""
    model = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(CLASSES)])
    return compiled(model, metrics=["accuracy"], weighted_metrics=["accuracy"])


@pytest.mark.parametrize(
    ("make", "calls", "settings"),
    [
        (classifier, 2, {}),
        (classifier, 1, {"batch_size": len(X)}),
        (seven_metrics, 2, {}),
        (names_twice, 2, {}),
    ],
)
def test_an_epoch_waits_once_and_nothing_passes_between_its_calls(events, make, calls, settings):
    labels = np.minimum(Y, 1) if make is seven_metrics else Y
    run(make, lambda model: model.fit(X, labels, callbacks=[Epochs(events)], **{**FIT, **settings}), "twin")
    for epoch in events[-2:]:
        assert [name for name in epoch if name != "get"] == ["steps"] * calls
        assert epoch.count("get") <= 1
        assert epoch[:calls] == ["steps"] * calls


def test_calls_of_few_steps_wait_for_nothing(events):
    def few(model):
        return model.fit(X, Y, callbacks=[Epochs(events)], **FIT)

    def make():
        model = classifier()
        model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy", steps_per_execution=2)
        return model

    run(make, few, "twin")
    full, partial = divmod(len(X), FIT["batch_size"])
    assert [name for name in events[-1] if name != "get"] == ["steps"] * (-(-full // 2) + bool(partial))
    assert events[-1].count("get") <= 1


@pytest.mark.parametrize("make", [classifier, seven_metrics, names_twice])
def test_the_logs_of_an_epoch_are_the_results_of_the_metrics_to_the_bit(make):
    labels = np.minimum(Y, 1) if make is seven_metrics else Y
    run(make, lambda model: model.fit(X, labels, callbacks=[Epochs([], compares=True)], **FIT), "virtual")


class OwnLoss(keras.Sequential):
    """Returns the loss of the last batch under the name of a mean."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "loss": keras.ops.sum(y_pred)}


class Changes(keras.callbacks.Callback):
    """Changes a metric after the last step of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        model: Any = self.model
        model.metrics[0].update_state(5.0)


@pytest.mark.parametrize(
    ("make", "callbacks"),
    [
        (lambda: compiled(OwnLoss([keras.Input((X.shape[1],)), keras.layers.Dense(CLASSES)])), []),
        (classifier, [Changes()]),
    ],
)
def test_logs_that_are_no_results_are_not_taken_for_them(make, callbacks):
    ours, theirs = (
        run(make, lambda model: model.fit(X, Y, callbacks=[*callbacks, Epochs([], compares=True)], **FIT), place)[1]
        for place in ("virtual", None)
    )
    assert list(ours.history) == list(theirs.history)
    np.testing.assert_allclose(ours.history["loss"], theirs.history["loss"], rtol=1e-5)


@pytest.mark.parametrize("place", ["virtual", "twin"])
def test_a_metric_of_several_numbers_is_an_array_in_the_history(place):
    def make():
        model = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(1, activation="sigmoid")])
        precision = keras.metrics.Precision(thresholds=[0.3, 0.5], name="p")
        return compiled(model, loss="binary_crossentropy", metrics=[precision])

    history = run(make, lambda model: model.fit(X, np.minimum(Y, 1), **FIT), place)[1].history
    assert all(isinstance(value, np.ndarray) and value.shape == (2,) for value in history["p"])
