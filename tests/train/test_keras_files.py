"""Keras's own files and callbacks in a scope: the same bits, and training goes on from them, or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import SettingError

X = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class InScope:
    """Models in the scope of one strategy."""

    def __init__(self, layout: str | None) -> None:
        self.strategy = tpu.connect("virtual", cores=4, layout=layout)
        self.whole = bits(self.fit(self.model(), 3))

    def model(self) -> Any:
        keras.utils.set_random_seed(3)
        layers = keras.layers
        with self.strategy.scope():
            model = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), layers.BatchNormalization()])
            model.add(layers.Dense(1))
            model.compile("adam", keras.losses.MeanSquaredError())
        return model

    def load(self, path: Path) -> Any:
        with self.strategy.scope():
            return keras.saving.load_model(path, safe_mode=True)

    def fit(self, model: Any, epochs: int, *callbacks: Any) -> Any:
        model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
        return model


@pytest.fixture(scope="module", params=[None, "fsdp"])
def inside(request: pytest.FixtureRequest) -> InScope:
    return InScope(request.param)


def bits(model: Any) -> list[bytes]:
    return [np.asarray(variable.value).tobytes() for variable in (*model.weights, *model.optimizer.variables)]


def test_files(inside: InScope, tmp_path: Path):
    model = inside.fit(inside.model(), 2)
    # 1. Weights, into a new model and into one that has trained.
    model.save_weights(tmp_path / "a.weights.h5")
    built, trained = inside.model(), inside.fit(inside.model(), 1)
    built.optimizer.build(built.trainable_variables)
    for other in (built, trained):
        other.load_weights(tmp_path / "a.weights.h5")
        assert bits(other) == bits(model)
        assert bits(inside.fit(other, 1)) == inside.whole
    # 2. Models: loaded in the scope, and without one.
    model.save(tmp_path / "a.keras")
    assert bits(keras.saving.load_model(tmp_path / "a.keras")) == bits(model)
    loaded = inside.load(tmp_path / "a.keras")
    assert bits(loaded) == bits(model)
    assert bits(inside.fit(loaded, 1)) == inside.whole
    # 3. Weights of a file in the old format.
    model.save(tmp_path / "old.h5")
    trained.load_weights(tmp_path / "old.h5")
    weights = len(model.weights)
    assert bits(trained)[:weights] == bits(model)[:weights]
    assert np.array_equal(trained.predict(X, verbose=0), model.predict(X, verbose=0))


def test_callbacks(inside: InScope, tmp_path: Path):
    # 1. ModelCheckpoint, after epochs and after steps.
    models = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras")
    weights = keras.callbacks.ModelCheckpoint(
        tmp_path / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=3
    )
    assert bits(inside.fit(inside.model(), 3, models, weights)) == inside.whole
    assert bits(inside.fit(inside.load(tmp_path / "2.keras"), 1)) == inside.whole
    middle = inside.model()
    middle.optimizer.build(middle.trainable_variables)
    middle.load_weights(tmp_path / "2-2.weights.h5")
    for start in (16, 24, 0, 8, 16, 24):
        middle.train_on_batch(X[start : start + 8], Y[start : start + 8])
    assert bits(middle) == inside.whole

    # 2. BackupAndRestore after an error.
    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise InterruptedError

    backup = tmp_path / "backup"
    with pytest.raises(InterruptedError):
        inside.fit(inside.model(), 3, keras.callbacks.BackupAndRestore(backup), Fails())
    assert bits(inside.fit(inside.model(), 3, keras.callbacks.BackupAndRestore(backup))) == inside.whole


def test_callbacks_that_are_refused(inside: InScope, tmp_path: Path):
    instead = 'Remove it, and write fit(..., checkpoint_dir="run7"), which continues bit for bit'
    for callback, error in (
        (
            keras.callbacks.BackupAndRestore(tmp_path, save_freq=3),
            "the callback BackupAndRestore(save_freq=3) continues at the beginning of an epoch with weights from its "
            f"middle, and trains steps twice. {instead}",
        ),
        (
            keras.callbacks.OrbaxCheckpoint(str(tmp_path / "orbax")),
            "the callback OrbaxCheckpoint writes checkpoints that Keras 3.15 does not load reliably: load_model, and "
            f"load_weights if a layer is numbered otherwise, keep the initial weights without an error. {instead}",
        ),
    ):
        with pytest.raises(SettingError) as raised:
            inside.fit(inside.model(), 1, callback)
        assert str(raised.value) == error
