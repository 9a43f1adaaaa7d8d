"""`fit`, `evaluate` and `predict` and their arguments, for every kind of data, against plain Keras."""

from __future__ import annotations

import math

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from keras_oracle import CLASSES, PLACES, agrees, classifier, close, compiled, rows, run

X, Y = rows()
WEIGHTS = np.linspace(0.5, 2.0, len(X)).astype("float32")


def batches(batch: int = 8, passes: float = 1):
    """Yield batches of X and Y, over and over when `passes` is infinite."""
    while passes > 0:
        passes -= 1
        for start in range(0, len(X), batch):
            yield X[start : start + batch], Y[start : start + batch]


class Pairs(keras.utils.PyDataset):
    """X and Y in batches."""

    def __init__(self, batch: int = 8, **kwargs):
        super().__init__(**kwargs)
        self.batch = batch

    def __len__(self):
        return -(-len(X) // self.batch)

    def __getitem__(self, index):
        here = slice(index * self.batch, (index + 1) * self.batch)
        return X[here], Y[here]


def grain_pairs(batch: int = 8):
    grain = pytest.importorskip("grain")
    pairs = list(zip(X, Y, strict=True))
    return grain.MapDataset.source(pairs).batch(batch)


ARGUMENTS = {
    "defaults": {},
    "batch size": {"batch_size": 7, "epochs": 3},
    "no shuffle": {"batch_size": 8, "shuffle": False},
    "larger than the data": {"batch_size": 100, "epochs": 2},
    "one row a batch": {"batch_size": 1},
    "class weight": {"batch_size": 8, "class_weight": {0: 1.0, 1: 3.0, 2: 0.5}, "epochs": 2},
    "sample weight": {"batch_size": 8, "sample_weight": WEIGHTS, "epochs": 2},
    "initial epoch": {"batch_size": 8, "initial_epoch": 2, "epochs": 4},
    "no epoch": {"initial_epoch": 2, "epochs": 2},
    "validation data": {"validation_data": (X[:19], Y[:19]), "epochs": 2},
    "weighted validation": {"validation_data": (X[:19], Y[:19], WEIGHTS[:19]), "epochs": 2},
    "validation split": {"validation_split": 0.3, "epochs": 3, "batch_size": 9},
    "weighted split": {"validation_split": 0.3, "epochs": 2, "batch_size": 9, "sample_weight": WEIGHTS},
    "validation frequency": {"batch_size": 8, "validation_data": (X[:16], Y[:16]), "epochs": 5, "validation_freq": 2},
    "validation epochs": {"batch_size": 8, "validation_data": (X[:16], Y[:16]), "epochs": 4, "validation_freq": [1, 4]},
    "validation batch": {"validation_split": 0.4, "validation_batch_size": 6, "epochs": 2},
    "validation steps": {"validation_split": 0.4, "validation_batch_size": 6, "validation_steps": 2, "epochs": 2},
    "steps": {"batch_size": 12, "steps_per_epoch": 4, "epochs": 2},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_fit_takes_every_argument(name: str):
    places = PLACES if name in {"batch size", "weighted split", "class weight"} else PLACES[:1]
    agrees(classifier, lambda model: model.fit(X, Y, verbose=0, **ARGUMENTS[name]), places=places)


@pytest.mark.parametrize("batch_size", [None, 7, 100])
def test_evaluate_and_predict(batch_size: int | None):
    def use(model):
        return (
            model.evaluate(X, Y, batch_size=batch_size, verbose=0),
            model.evaluate(X, Y, batch_size=batch_size, sample_weight=WEIGHTS, return_dict=True, verbose=0),
            model.predict(X, batch_size=batch_size, verbose=0),
            model.predict(X[:1], verbose=0),
        )

    agrees(classifier, use, places=PLACES)


def test_evaluate_and_predict_some_steps():
    agrees(
        classifier,
        lambda model: (
            model.evaluate(X, Y, batch_size=8, steps=3, verbose=0),
            model.predict(X, batch_size=8, steps=3, verbose=0),
        ),
    )


def test_fit_again_goes_on():
    def train(model):
        first = model.fit(X, Y, batch_size=8, epochs=2, verbose=0).history
        model.train_on_batch(X[:9], Y[:9])
        scores = model.evaluate(X, Y, verbose=0)
        return first, scores, model.fit(X, Y, batch_size=6, epochs=2, verbose=0).history, model.predict(X, verbose=0)

    agrees(classifier, train)


DATA = {
    "jax arrays": lambda: {"x": jnp.asarray(X), "y": jnp.asarray(Y), "batch_size": 8},
    "numpy x, jax y": lambda: {"x": X, "y": jnp.asarray(Y), "batch_size": 8},
    "PyDataset": lambda: {"x": Pairs()},
    "PyDataset in threads": lambda: {"x": Pairs(workers=2), "shuffle": False},
    "PyDataset and steps": lambda: {"x": Pairs(), "steps_per_epoch": 6, "shuffle": False},
    "endless generator": lambda: {"x": batches(passes=math.inf), "steps_per_epoch": 6, "shuffle": False},
    "odd steps of an endless generator": lambda: {
        "x": batches(passes=math.inf),
        "steps_per_epoch": 5,
        "shuffle": False,
    },
    "grain": lambda: {"x": grain_pairs(), "shuffle": False},
    "validation generator": lambda: {
        "x": X,
        "y": Y,
        "validation_data": batches(passes=math.inf),
        "validation_steps": 6,
    },
    "validation PyDataset": lambda: {"x": X, "y": Y, "validation_data": Pairs(5)},
}


@pytest.mark.parametrize("name", DATA)
def test_fit_takes_every_kind_of_data(name: str):
    agrees(classifier, lambda model: model.fit(epochs=2, verbose=0, **DATA[name]()), places=PLACES)


def test_a_generator_of_one_epoch():
    agrees(classifier, lambda model: model.fit(batches(), shuffle=False, verbose=0))
    agrees(classifier, lambda model: (model.evaluate(batches(), verbose=0), model.predict(batches(), verbose=0)))


def test_a_generator_of_weighted_batches_of_any_size():
    def odd():
        for start, end in ((0, 8), (8, 11), (11, 12), (12, 20), (20, 50)):
            yield X[start:end], Y[start:end], WEIGHTS[start:end]

    agrees(classifier, lambda model: model.fit(odd(), shuffle=False, verbose=0))


@pytest.mark.parametrize("kind", ["grain", "PyDataset"])
def test_evaluate_and_predict_data_sets(kind: str):
    make = {"grain": grain_pairs, "PyDataset": Pairs}[kind]
    agrees(classifier, lambda model: (model.evaluate(make(), verbose=0), model.predict(make(), verbose=0)))


def test_bytes_of_an_image_travel_as_bytes():
    pixels = np.random.default_rng(0).integers(0, 256, (30, 4, 4, 1)).astype("uint8")

    def make():
        layers = [keras.Input((4, 4, 1)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
        return compiled(keras.Sequential([*layers, keras.layers.Dense(CLASSES)]))

    agrees(make, lambda model: (model.fit(pixels, Y[:30], batch_size=8, verbose=0), model.predict(pixels, verbose=0)))


def test_one_shape_compiles_once():
    strategy = tpu.connect("virtual")
    before = strategy.compilations
    with strategy.scope():
        model = classifier()
    model.fit(X, Y, batch_size=8, epochs=3, verbose=0)
    assert strategy.compilations - before == 1
    model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    assert strategy.compilations - before == 1
    model.fit(X[:43], Y[:43], batch_size=8, epochs=2, verbose=0)
    assert strategy.compilations - before <= 3


@pytest.mark.parametrize("place", PLACES)
def test_history_is_keras_history(place: str):
    model, history = run(classifier, lambda model: model.fit(X, Y, epochs=2, verbose=0), place)
    assert isinstance(history, keras.callbacks.History)
    assert history.epoch == [0, 1]
    assert history.params == {"verbose": 0, "epochs": 2, "steps": 2}
    assert list(history.history) == ["accuracy", "loss"]
    close(model.history.history, history.history)
