"""The built-in jobs of `anytpu compare`: small versions of the first TPU guides' jobs, on generated or vendored data.

Rule: each takes seconds, not minutes, on two CPU cores, and every system gets the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
from keras import layers

from anytpu.pipeline.named import digits, iris

Task = tuple[Any, Any, Any, int]
"""`(model, x, y, batch_size)`: a compiled Keras model, its training data, and the examples per step."""
Job = Callable[[Any], Task]
"""Takes a strategy, and returns the task to train under it."""

_SEED = 7


def digits_job(strategy: Any) -> Task:
    """Classify handwritten digits of 8 by 8 pixels with two convolutions."""
    (x, y), _ = digits()
    return _task(
        strategy,
        lambda: [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ],
        (x, y),
        batch_size=64,
    )


def iris_job(strategy: Any) -> Task:
    """Classify irises with 256 hidden units, one example per step."""
    (x, y), _ = iris()
    return _task(
        strategy,
        lambda: [
            layers.Input((4,)),
            layers.Dense(256, activation="sigmoid"),
            layers.Dense(3, activation="softmax"),
        ],
        (x, y),
        batch_size=1,
    )


def imdb_job(strategy: Any) -> Task:
    """Classify generated reviews of 250 words with an LSTM.

    The shapes are those of the IMDB guide: 15,000 different words, an LSTM of 100 units.
    """
    random = np.random.default_rng(_SEED)
    y = random.integers(0, 2, 512).astype("int32")
    # In a negative review, a fifth of the words become word 0.
    x = random.integers(0, 15000, (512, 250)) * np.where(random.random((512, 250)) < 0.2, y[:, None], 1)
    return _task(
        strategy,
        lambda: [
            layers.Input((250,)),
            layers.Embedding(15000, 32),
            layers.LSTM(100),
            layers.Dense(1, activation="sigmoid"),
        ],
        (x.astype("int32"), y),
        batch_size=64,
        loss="binary_crossentropy",
    )


def mnist_job(strategy: Any) -> Task:
    """Classify digits of 28 by 28 pixels with two convolutions.

    The 8 by 8 digits are enlarged three times; the layers are those of the TPU guide, an eighth as wide.
    """
    (small, y), _ = digits()
    x = np.zeros((1000, 28, 28, 1), "float32")
    x[:, 2:26, 2:26] = small[:1000].repeat(3, axis=1).repeat(3, axis=2)
    return _task(
        strategy,
        lambda: [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ],
        (x, y[:1000]),
        batch_size=200,
    )


JOBS: Mapping[str, Job] = MappingProxyType(
    {"digits": digits_job, "iris": iris_job, "imdb": imdb_job, "mnist": mnist_job}
)
"""Name -> job."""


def _task(
    strategy: Any,
    make_layers: Callable[[], list[Any]],
    rows: tuple[np.ndarray, np.ndarray],
    batch_size: int,
    loss: str = "sparse_categorical_crossentropy",
) -> Task:
    """Return the task of a model of these layers; the seed gives every system the same initial weights."""
    keras.utils.set_random_seed(_SEED)
    with strategy.scope():
        model: Any = keras.Sequential(make_layers())
        model.compile("adam", loss, metrics=["accuracy"])
    return model, *rows, batch_size
