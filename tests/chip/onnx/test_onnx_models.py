"""Models for the real digits, from Keras to the chip and to onnxruntime: 0 integers differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anytpu as tpu  # isort: skip
import keras
import numpy as np
import pytest
from keras import layers

import chip_models
import chip_oracle
from anytpu.chip.chip_program import ChipProgram
from anytpu.chip.graph.nodes import HostStep
from anytpu.chip.quantized import reference
from anytpu.errors import ChipError
from chip_models import X_TEST, X_TRAIN, Y_TEST
from refusals import refusal

ROWS = 24


def assert_all_agree(program: ChipProgram, x: np.ndarray, path: Path) -> None:
    """Check chip, reference and the ONNX file against each other: each tensor, each integer."""
    network = program.network
    assert network is not None
    wanted = reference.compute(network, [x])
    found = chip_oracle.integers(network, [x], path)
    assert chip_oracle.differing(wanted, found, list(network.quantizations)) == {}
    integers = program.run_int8(x)
    last = network.nodes[-1].inputs[0] if isinstance(network.nodes[-1], HostStep) else network.outputs[0].tensor
    assert integers.dtype == network.quantizations[last].dtype
    assert (integers.reshape(wanted[last].shape) == wanted[last]).all()


def assert_outputs_agree(program: ChipProgram, x: np.ndarray, path: Path) -> np.ndarray:
    """Check the user's way, real numbers in and out, and return them."""
    written = program.to_onnx(path)
    (scores,) = chip_oracle.run(written, [x]).values()
    assert scores.dtype == np.float32
    assert (scores == program.run(x)).all()
    return scores


@pytest.mark.parametrize("name", sorted(set(chip_models.BITS) - {"mlp", "cnn"}))
def test_a_model(name: str, tmp_path: Path):
    model = chip_models.model_of(name)
    program = tpu.chip.compile(model, X_TRAIN[:100], activation_bits=chip_models.BITS[name], batch=ROWS)
    assert_all_agree(program, X_TEST[:ROWS], tmp_path / "model.onnx")
    found = assert_outputs_agree(program, X_TEST[:100], tmp_path / "model.onnx")
    # And it is still the model: what is lost is a small part of what there is.
    floats = np.asarray(model(X_TEST[:100], training=False))
    assert np.sqrt(((found - floats) ** 2).mean() / floats.var()) < 0.1


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_trained_model(name: str, tmp_path: Path):
    model = chip_models.model_of(name)
    chip_models.train(model, epochs=4)
    program = tpu.chip.compile(model, X_TRAIN[:256], batch=ROWS)
    assert_all_agree(program, X_TEST[:ROWS], tmp_path / "model.onnx")
    found = assert_outputs_agree(program, X_TEST, tmp_path / "model.onnx")
    right = (found.argmax(axis=1) == Y_TEST).mean()
    in_floats = (np.asarray(model(X_TEST, training=False)).argmax(axis=1) == Y_TEST).mean()
    assert in_floats > 0.85
    assert right > in_floats - 0.02


def test_a_softmax_on_the_host(tmp_path: Path):
    program = tpu.chip.compile(chip_models.model_of("with_softmax"), X_TRAIN[:100], batch=ROWS)
    assert_all_agree(program, X_TEST[:ROWS], tmp_path / "model.onnx")
    path = program.to_onnx(tmp_path / "model.onnx")
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
    assert_outputs_agree(program, x, tmp_path / "model.onnx")


def attention() -> keras.Model:
    x = layers.Input((8, 8))
    seen = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)]))
    return keras.Model(x, layers.Dense(10)(layers.GlobalAveragePooling1D()(seen)))


def padded() -> keras.Model:
    made = [layers.Reshape((5, 4, 1, 6)), layers.ZeroPadding3D(1), layers.Flatten(), layers.Dense(4)]
    return keras.Sequential([layers.Input((5, 4, 6)), *made])


def volumes() -> keras.Model:
    made = [layers.Conv3D(4, (2, 2, 2), name="volume"), layers.Flatten()]
    return keras.Sequential([layers.Input((4, 3, 3, 2)), *made, layers.Dense(4)])


def test_a_convolution_of_the_host_is_refused(tmp_path: Path):
    x = np.random.default_rng(0).normal(0, 1, (11, 4, 3, 3, 2)).astype(np.float32)
    program = tpu.chip.compile(volumes(), x, batch=4)
    assert refusal(ChipError, program.to_onnx, tmp_path / "model.onnx") == (
        "The layer 'volume' cannot be written as ONNX: the host computes 'convolution' for it, for which "
        "there is no operator here. Compile the model without that layer, and compute it from the outputs."
    )


@pytest.mark.parametrize("make", [attention, padded])
def test_what_else_the_host_computes(make: Callable[[], keras.Model], tmp_path: Path):
    """In floating point, which the chip then takes as integers: few of them, if any, may be next to each other."""
    keras.utils.set_random_seed(3)
    model = make()
    x = np.random.default_rng(0).normal(0, 1, (11, *model.input_shape[1:])).astype(np.float32)
    program = tpu.chip.compile(model, x, batch=4)
    network = program.network
    assert network is not None
    assert any(isinstance(node, HostStep) for node in network.nodes)
    found = chip_oracle.integers(network, [x], tmp_path / "model.onnx")
    wanted = reference.compute(network, [x])
    for name in found:
        assert abs(found[name].astype(int) - wanted[name]).max() <= 1
        assert (found[name] != wanted[name]).mean() < 0.01
