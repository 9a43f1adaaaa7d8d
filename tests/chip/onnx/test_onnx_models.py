"""Models trained on the real digits, from Keras to the chip and to onnxruntime: 0 integers differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import keras
import numpy as np
import pytest
from keras import layers

import chip_oracle
from anytpu.chip.chip_program import ChipProgram
from anytpu.chip.quantized import reference
from anytpu.chip.quantized.nodes import QHostStep

ROWS = 24
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
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


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


def trained(make: Callable[..., Any], epochs: int) -> keras.Model:
    """Return a model that was trained on the digits for a moment."""
    keras.utils.set_random_seed(1)
    if make in (residual, inception):
        x = layers.Input(X_TRAIN.shape[1:])
        model = keras.Model(x, make(x))
    else:
        model = keras.Sequential([layers.Input(X_TRAIN.shape[1:]), *make()])
    is_scores = make is not with_softmax
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=is_scores))
    model.fit(X_TRAIN, Y_TRAIN, batch_size=128, epochs=epochs, verbose=0)
    return model


def assert_all_agree(program: ChipProgram, x: np.ndarray, path: Path) -> None:
    """Check chip, reference and both forms of the ONNX file against each other: each tensor, each integer."""
    network = program.network
    assert network is not None
    wanted = reference.compute(network, [x])
    for unsigned in (False, True) if chip_oracle.has_vnni() else (True,):
        found = chip_oracle.integers(network, [x], path, unsigned=unsigned)
        assert chip_oracle.differing(wanted, found, list(network.quantizations)) == {}
    integers = program.run_int8(x)
    last = network.nodes[-1].inputs[0] if isinstance(network.nodes[-1], QHostStep) else network.outputs[0].tensor
    assert integers.dtype == network.quantizations[last].dtype
    assert (integers.reshape(wanted[last].shape) == wanted[last]).all()


@pytest.mark.parametrize(
    ("make", "bits"), [(mlp, 8), (cnn, 8), (residual, 8), (separable, 8), (inception, 8), (lstm, 16), (gru, 16)]
)
def test_a_model(make: Callable[..., Any], bits: Any, tmp_path: Path):
    model = trained(make, epochs=2)
    program = tpu.chip.compile(model, calibration=X_TRAIN[:100], activation_bits=bits, batch=ROWS)
    assert_all_agree(program, X_TEST[:ROWS], tmp_path / "model.onnx")
    # The user's way: real numbers in, real numbers out.
    path = program.to_onnx(tmp_path / "model.onnx", unsigned=not chip_oracle.has_vnni())
    (scores,) = chip_oracle.run(path, [X_TEST]).values()
    assert scores.dtype == np.float32
    assert (scores == program.run(X_TEST)).all()
    # And it is still the model: nearly every digit is called what floating point calls it.
    floats = model.predict(X_TEST, verbose=0)
    assert (scores.argmax(axis=1) == floats.argmax(axis=1)).mean() > 0.97


def test_a_softmax_on_the_host(tmp_path: Path):
    model = trained(with_softmax, epochs=2)
    program = tpu.chip.compile(model, calibration=X_TRAIN[:100], batch=ROWS)
    assert_all_agree(program, X_TEST[:ROWS], tmp_path / "model.onnx")
    path = program.to_onnx(tmp_path / "model.onnx", unsigned=not chip_oracle.has_vnni())
    (shares,) = chip_oracle.run(path, [X_TEST]).values()
    np.testing.assert_allclose(shares, program.run(X_TEST), rtol=1e-5, atol=1e-7)


def test_an_embedding_on_the_host(tmp_path: Path):
    """Rows of pixels as words: the host looks them up, the chip does the rest."""
    keras.utils.set_random_seed(2)
    words = [layers.Input((8,), dtype="int32"), layers.Embedding(17, 6), layers.Conv1D(8, 3, activation="relu")]
    model = keras.Sequential([*words, layers.GlobalAveragePooling1D(), layers.Dense(10)])
    x = np.rint(X_TEST[:, :, 3, 0] * 16).astype(np.int32)
    program = tpu.chip.compile(model, calibration=x[:100], batch=ROWS)
    assert_all_agree(program, x[:ROWS], tmp_path / "model.onnx")
    path = program.to_onnx(tmp_path / "model.onnx", unsigned=not chip_oracle.has_vnni())
    (scores,) = chip_oracle.run(path, [x]).values()
    assert (scores == program.run(x)).all()
