"""Layers inside `keras.remat`: their weights train, and their models are planned."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.program import of
from anytpu.program.lowering import lower


class Recomputed(keras.layers.Layer):
    """A layer whose inner layer is computed once more in the backward pass."""

    def __init__(self, inner: keras.layers.Layer, is_recomputed: bool) -> None:
        super().__init__()
        self.inner, self.is_recomputed = inner, is_recomputed

    def build(self, shape: Any) -> None:
        self.inner.build(shape)
        self.built = True

    def call(self, x: Any) -> Any:
        return keras.remat(self.inner)(x) if self.is_recomputed else self.inner(x)


def model_of(is_recomputed: bool) -> keras.Model:
    keras.utils.set_random_seed(0)
    block = Recomputed(keras.layers.Dense(16, "relu"), is_recomputed)
    model = keras.Sequential([keras.Input((8,)), block, keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fitted(is_recomputed: bool) -> list[np.ndarray]:
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    with tpu.connect("virtual", cores=2).scope():
        model = model_of(is_recomputed)
    model.fit(x, np.arange(64) % 3, batch_size=16, epochs=2, shuffle=False, verbose=0)
    model.evaluate(x, np.arange(64) % 3, batch_size=16, verbose=0)
    model.fit(x, np.arange(64) % 3, batch_size=8, epochs=1, shuffle=False, verbose=0)
    return model.get_weights()


def test_the_weights_of_a_recomputed_layer_train():
    for recomputed, plain in zip(fitted(True), fitted(False), strict=True):
        assert recomputed == pytest.approx(plain, abs=1e-6)


def test_a_program_of_a_recomputed_layer_is_lowered_as_often_as_wanted():
    model = model_of(True)
    for batch_size in (16, 32):
        for mode in ("train", "infer"):
            program = of(model, batch_size=batch_size, mode=mode)
            leaves = jax.tree.leaves((program.state, program.batch))
            assert len(lower(program, "tpu").in_avals) == len(leaves)
