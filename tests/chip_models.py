"""Models of many kinds for the digits of 8 by 8 pixels, for the chip: each a list of Keras layers, or a function."""

from __future__ import annotations

from typing import Any, Literal

import anytpu as tpu  # isort: skip
import keras
import numpy as np
from keras import layers

(X_TRAIN, Y_TRAIN), (X_TEST, Y_TEST) = tpu.pipeline.digits()


def mlp() -> list[Any]:
    return [
        layers.Flatten(),
        layers.Dense(32, activation="relu"),
        layers.Dense(16, activation="tanh"),
        layers.Dense(10),
    ]


def cnn() -> list[Any]:
    first = layers.Conv2D(12, 3, activation="relu")
    return [first, layers.MaxPooling2D(), layers.Conv2D(16, 2), layers.ReLU(), layers.Flatten(), layers.Dense(10)]


def separable() -> list[Any]:
    return [
        layers.Conv2D(8, 3, padding="same", activation="relu"),
        layers.DepthwiseConv2D(3, strides=2, padding="same", use_bias=False),
        layers.BatchNormalization(momentum=0.8),
        layers.ReLU(6.0),
        layers.SeparableConv2D(16, 3, padding="same", activation="swish"),
        layers.GlobalMaxPooling2D(),
        layers.Dense(10),
    ]


def lstm() -> list[Any]:
    return [layers.Reshape((8, 8)), layers.LSTM(12), layers.Dense(10)]


def gru() -> list[Any]:
    return [layers.Reshape((8, 8)), layers.GRU(12), layers.Dense(10)]


def with_softmax() -> list[Any]:
    return [*mlp(), layers.Softmax()]


def residual(x: Any) -> Any:
    x = layers.Conv2D(12, 3, padding="same", use_bias=False)(x)
    x = start = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x))
    x = layers.BatchNormalization(momentum=0.8)(layers.Conv2D(12, 3, padding="same", use_bias=False)(x))
    x = layers.ReLU()(layers.Add()([x, start]))
    return layers.Dense(10)(layers.Flatten()(layers.AveragePooling2D(2)(x)))


def inception(x: Any) -> Any:
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    narrow = layers.Conv2D(4, 1, activation="relu")(x)
    branches = [
        narrow,
        layers.Conv2D(6, 3, padding="same", activation="relu")(narrow),
        layers.Conv2D(4, 1, activation="relu")(layers.AveragePooling2D(3, 1, padding="same")(x)),
        layers.MaxPooling2D(3, 1, padding="same")(x),
    ]
    return layers.Dense(10)(layers.Flatten()(layers.MaxPooling2D()(layers.Concatenate()(branches))))


BITS: dict[str, Literal[8, 16]] = {
    "mlp": 8,
    "cnn": 8,
    "residual": 8,
    "separable": 8,
    "inception": 8,
    "lstm": 16,
    "gru": 16,
}
"""The models whose every number the chip computes, and the bits of their activations."""


def model_of(name: str, seed: int = 1) -> keras.Model:
    """Return a model as it is before training, but for the statistics of its normalizations."""
    keras.utils.set_random_seed(seed)
    make = globals()[name]
    x = layers.Input(X_TRAIN.shape[1:])
    if name in ("residual", "inception"):
        model = keras.Model(x, make(x), name=name)
    else:
        model = keras.Sequential([x, *make()], name=name)
    random = np.random.default_rng(seed)
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.set_weights([random.uniform(0.5, 1.5, weight.shape) for weight in layer.weights])
    return model


def train(model: keras.Model, epochs: int) -> None:
    """Train a model on the digits, from scores or, where it ends in a softmax, from shares."""
    is_scores = not isinstance(model.layers[-1], layers.Softmax)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=is_scores))
    model.fit(X_TRAIN, Y_TRAIN, batch_size=128, epochs=epochs, verbose=0)
