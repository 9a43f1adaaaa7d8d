"""The seed jobs as Keras models, for Keras on any backend and for anytpu."""

from __future__ import annotations

import os

import keras
from keras import layers

from inputs import BATCH, rows
from worker import Train

JIT = False if os.environ.get("WITHOUT_XLA") else "auto"
"""What Keras chooses, XLA where it can; or TensorFlow's own kernels."""


def iris() -> keras.Model:
    """256 hidden sigmoids, no biases (a column of ones stands for the first), gradient descent at 0.01."""
    model = keras.Sequential(
        [layers.Input((5,)), layers.Dense(256, "sigmoid", use_bias=False), layers.Dense(3, use_bias=False)]
    )
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=JIT)
    return model


def imdb(recurrent: type[layers.Layer] = layers.LSTM) -> keras.Model:
    """Embedding(15000, 32), a recurrent layer of 100 units, Dense(1) over 250 words."""
    model = keras.Sequential(
        [
            layers.Input((250,), dtype="int32"),
            layers.Embedding(15000, 32),
            recurrent(100),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"], jit_compile=JIT)
    return model


def gru() -> keras.Model:
    return imdb(layers.GRU)


def mnist() -> keras.Model:
    """Two convolutions of 256 filters, three dense layers."""
    model = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(256, 3, activation="relu"),
            layers.Conv2D(256, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    _compile(model)
    return model


def cifar10() -> keras.Model:
    """ResNet-20, version 1."""

    def unit(x, filters, strides=1, kernel=3, last=None):
        x = layers.BatchNormalization()(layers.Conv2D(filters, kernel, strides, padding="same")(x))
        return layers.ReLU()(x if last is None else layers.add([x, last]))

    inputs = layers.Input((32, 32, 3))
    x = unit(inputs, 16)
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            strides = 2 if stage and not block else 1
            shortcut = x if strides == 1 else layers.Conv2D(filters, 1, strides, padding="same")(x)
            x = unit(unit(x, filters, strides), filters, last=shortcut)
    x = layers.Flatten()(layers.AveragePooling2D(8)(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    _compile(model)
    return model


def resnet50() -> keras.Model:
    """ResNet-50, version 1, as Keras has it: the first convolution of a block has its stride."""
    model = keras.applications.ResNet50(weights=None, classifier_activation=None)
    _compile(model)
    return model


def gpt() -> keras.Model:
    """A decoder of four layers whose norms stand before attention and before the dense layers."""
    words = layers.Input((64,), dtype="int32")
    x = layers.Embedding(1000, 128)(words) + layers.Embedding(64, 128)(keras.ops.arange(64))
    for _ in range(4):
        normed = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32)(normed, normed, use_causal_mask=True)
        inner = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(128)(inner)
    model = keras.Model(words, layers.Dense(1000)(layers.LayerNormalization()(x)))
    _compile(model)
    return model


def _compile(model: keras.Model) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["sparse_categorical_accuracy"], jit_compile=JIT)


def fit(job: str, steps: int) -> Train:
    """Return a function that trains a job with `fit`; iris goes over its rows in their order, whole epochs only."""
    makers = {"iris": iris, "imdb": imdb, "gru": gru, "mnist": mnist, "cifar10": cifar10, "resnet50": resnet50}
    makers["gpt"] = gpt
    model = makers[job]()
    x, y = rows(job, steps)
    epochs = steps * BATCH[job] // len(x)

    def train() -> float:
        history = model.fit(x, y, batch_size=BATCH[job], epochs=epochs, verbose=0, shuffle=job != "iris")
        return history.history["loss"][-1]

    return train
