"""The methods that only a converted model has: data sets from functions, plain .h5 files."""

from __future__ import annotations

import gc
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from keras import layers

import anytpu as tpu
from anytpu.errors import SettingError
from error_texts import error_text
from keras_oracle import CLASSES, FEATURES, close, compiled, rows

X, Y = rows()
GLOBAL_BATCHES = (
    "the batches of the data set are global batches: each of the 8 cores gets its part of one. The first TPU systems "
    "took them for the batches of one core; for the same training as there, make them 8 times as large"
)


def plain() -> Any:
    keras.utils.set_random_seed(7)
    parts = [keras.Input((FEATURES,)), layers.Dense(8, activation="tanh"), layers.Dense(CLASSES)]
    return compiled(keras.Sequential(parts), optimizer=keras.optimizers.Adam(0.01))


def converted(cores: int = 8) -> Any:
    strategy = tpu.TPUDistributionStrategy(tpu.TPUClusterResolver("virtual", cores=cores))
    return tpu.keras_to_tpu_model(plain(), strategy)


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for first in range(0, 48, 20):
        yield X[first : first + 20], Y[first : first + 20]


class Set(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return list(batches())[index]


@pytest.mark.parametrize("make", [batches, Set])
def test_a_function_that_makes_a_data_set(make: Any):
    model, oracle = converted(), plain()
    with pytest.warns(UserWarning) as caught:
        history = model.fit(make, epochs=3, shuffle=False, validation_data=make, verbose=0).history
    assert [str(warning.message) for warning in caught if warning.category is UserWarning] == [GLOBAL_BATCHES]

    settings = {"batch_size": 20, "epochs": 3, "shuffle": False, "validation_batch_size": 20, "verbose": 0}
    close(history, oracle.fit(X, Y, validation_data=(X, Y), **settings).history)
    # Said once; evaluate and predict know functions too.
    close(model.evaluate(make, verbose=0), oracle.evaluate(X, Y, batch_size=20, verbose=0))
    close(model.predict(lambda: ((x,) for x, _ in batches()), verbose=0), oracle.predict(X, verbose=0))


def test_a_function_with_weights_and_some_steps_of_each_epoch():
    weights = np.linspace(0, 2, 48).astype("float32")

    def weighted() -> Iterator[Any]:
        while True:
            for first in range(0, 48, 20):
                rows = slice(first, first + 20)
                yield X[rows], Y[rows], weights[rows]

    model, oracle = converted(1), plain()
    history = model.fit(weighted, epochs=2, steps_per_epoch=3, verbose=0).history
    close(history, oracle.fit(X, Y, 20, epochs=2, shuffle=False, sample_weight=weights, verbose=0).history)


def test_weights_of_rows_count():
    weights = np.linspace(0, 2, 48).astype("float32")
    model, oracle = converted(), plain()
    settings: dict[str, Any] = {"batch_size": 20, "shuffle": False, "sample_weight": weights, "verbose": 0}
    close(model.fit(X, Y, **settings).history, oracle.fit(X, Y, **settings).history)


@pytest.mark.parametrize(
    ("given", "names"),
    [({"y": Y}, "y"), ({"batch_size": 64}, "batch_size"), ({"y": Y, "batch_size": 64}, "y and batch_size")],
)
def test_a_function_gives_its_own_targets_and_batches(given: Any, names: str):
    assert error_text(lambda: converted().fit(batches, **given), kind=SettingError) == (
        f"{names} cannot be passed when x is a function: the data set that it returns contains the targets and the "
        "batches. Type model.fit(make_dataset), where make_dataset() yields (x, y)"
    )


def test_a_plain_h5_name(tmp_path: Path):
    model = converted()
    model.fit(X, Y, verbose=0)
    path = tmp_path / "tpu_model.h5"
    model.save_weights(str(path), overwrite=True)
    model.save_weights(path)
    assert os.listdir(tmp_path) == ["tpu_model.h5"]

    # Slots and all: another model goes on where this one stands.
    other = converted(2)
    other.load_weights(str(path))
    close(other.fit(X, Y, shuffle=False, verbose=0).history, model.fit(X, Y, shuffle=False, verbose=0).history)

    # Plain Keras reads it under the name that it wants, and we what plain Keras wrote.
    kept = tmp_path / "kept.weights.h5"
    shutil.copy(path, kept)
    oracle = plain()
    oracle.optimizer.build(oracle.trainable_variables)
    oracle.load_weights(kept)
    other.load_weights(path)
    close(oracle.predict(X, verbose=0), other.predict(X, verbose=0))
    oracle.save_weights(kept)
    other.save_weights(tmp_path / "other.weights.h5")
    model.load_weights(kept)
    close(oracle.predict(X, verbose=0), model.predict(X, verbose=0))


def test_a_file_that_is_there(tmp_path: Path):
    model = converted()
    path = tmp_path / "tpu_model.h5"
    path.write_text("mine")
    assert error_text(lambda: model.save_weights(path, overwrite=False), kind=SettingError) == (
        f"{str(path)!r} exists, and overwrite is False: pass overwrite=True, or another name"
    )
    assert path.read_text() == "mine"


def test_a_file_of_keras_2(tmp_path: Path):
    weights = plain().get_weights()
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file.attrs["layer_names"] = [b"dense", b"dense_1"]
        for name, kernel, bias in (("dense", *weights[:2]), ("dense_1", *weights[2:])):
            group = file.create_group(name)
            group.attrs["weight_names"] = [f"{name}/kernel:0".encode(), f"{name}/bias:0".encode()]
            group[f"{name}/kernel:0"], group[f"{name}/bias:0"] = kernel + 1, bias + 2

    model = converted()
    model.load_weights(tmp_path / "old.h5")
    close(model.get_weights(), [weights[0] + 1, weights[1] + 2, weights[2] + 1, weights[3] + 2])


def test_what_is_compiled_is_said(caplog: pytest.LogCaptureFixture):
    model = converted()
    with caplog.at_level("INFO", logger="anytpu"):
        model.predict(X[:32], verbose=0)
    (line,) = [record.getMessage() for record in caplog.records]
    said, _, seconds = line.rpartition(": ")
    assert said == f"compiled {model.name}/predict for 8 cores and batches of (32, 6)"
    assert seconds.endswith(" s") and float(seconds[:-2]) > 0


def test_the_class_of_a_model_that_is_gone_is_freed():
    def used() -> weakref.ref:
        class Own(keras.Sequential):
            pass

        model = Own([keras.Input((FEATURES,)), layers.Dense(CLASSES)])
        first, second = tpu.keras_to_tpu_model(model), tpu.keras_to_tpu_model(model)
        assert type(first) is type(second) is not Own
        return weakref.ref(Own)

    gone = used()
    gc.collect()
    assert gone() is None
