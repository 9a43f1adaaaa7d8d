"""Plain Keras as the oracle: the same program with the same seed, outside any scope and on anytpu's places."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import anytpu as tpu

PLACES = ("virtual", "twin")
"""Virtual cores, and the twin whose handles raise on any use but `get`."""

FEATURES, CLASSES = 6, 3


class EveryLog(keras.callbacks.Callback):
    """Keeps the logs of every step, one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep the logs of a step."""
        self.logs.append({name: float(value) for name, value in logs.items()})


def rows(count: int = 48, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` examples and their classes."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, FEATURES)).astype("float32"), rng.integers(0, CLASSES, count).astype("int32")


def classifier() -> keras.Sequential:
    """Return a compiled Sequential model, built, with a metric."""
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(CLASSES)]
    )
    return compiled(model)


def compiled(model: Any, **settings: Any) -> Any:
    """Compile a classifier with SGD, so that rounding noise is not turned into steps."""
    usual = {
        "optimizer": keras.optimizers.SGD(0.1, momentum=0.9),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }
    model.compile(**{**usual, **settings})
    return model


def run(make: Callable[[], Any], train: Callable[[Any], Any], place: str | None) -> tuple[Any, Any]:
    """Make a model at a place (None is plain Keras), train it outside the scope; return it and the result."""
    keras.utils.set_random_seed(11)
    with tpu.connect(place).scope() if place else contextlib.nullcontext():
        model = make()
    if place:
        return model, train(model)
    with warnings.catch_warnings():
        # Keras says so of every data set whose length it does not know.
        warnings.filterwarnings("ignore", "Your input ran out of data")
        return model, train(model)


def values(model: Any) -> list[np.ndarray]:
    """Return the values of all variables of a model: weights, seeds, optimizer, metrics."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer else ()), *model.metrics_variables]
    return [np.array(variable.value) for variable in variables]


def close(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    """Assert that two trees of numbers agree to `tolerance` times the largest of each array, at least 1."""
    ours, theirs = (keras.tree.map_structure(_plain, results) for results in (ours, theirs))
    keras.tree.assert_same_structure(ours, theirs)
    for one, other in zip(keras.tree.flatten(ours), keras.tree.flatten(theirs), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape
        if one.dtype.kind in "iub":
            np.testing.assert_array_equal(one, other)
        else:
            one, other = one.astype("float64"), other.astype("float64")
            largest = np.max(np.abs(other), where=np.isfinite(other), initial=1.0)
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * float(largest))


def _plain(one: Any) -> Any:
    return one.history if isinstance(one, keras.callbacks.History) else one


def agrees(
    make: Callable[[], Any],
    train: Callable[[Any], Any],
    *,
    places: tuple[str, ...] = PLACES[:1],
    tolerance: float = 1e-5,
) -> Any:
    """Assert that a program gives the same results and the same variables as under plain Keras; return the result."""
    keras_model, keras_result = run(make, train, None)
    for place in places:
        model, result = run(make, train, place)
        close(result, keras_result, tolerance)
        close(values(model), values(keras_model), tolerance)
    return keras_result
