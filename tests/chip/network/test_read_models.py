"""Models as networks: what `evaluate` computes is what the model itself predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anytpu  # noqa: F401  # isort: skip
import keras
import numpy as np
import pytest
from keras import layers

from anytpu import program
from anytpu.chip.network import evaluate, read
from anytpu.chip.network.nodes import Network
from anytpu.chip.network.shapes import restored


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def shaken(model: Any) -> Any:
    """Give every weight a value of its own, so that no bias is 0 and no scale 1."""
    random = np.random.default_rng(1)
    for weight in model.weights:
        drawn = random.normal(size=weight.shape) * 0.4
        weight.assign(np.abs(drawn) + 0.5 if "variance" in weight.path else drawn)
    return model


def network_of(model: Any) -> Network:
    return read(program.of(model, None, mode="infer", tensors=True, batch_size=8))


def agree(network: Network, model: Any, inputs: Sequence[np.ndarray]) -> None:
    expected = model.predict(list(inputs) if len(inputs) > 1 else inputs[0], verbose=0)
    tensors = evaluate(network, inputs)
    for port, want in zip(network.outputs, expected if isinstance(expected, list) else [expected], strict=True):
        got = restored(tensors[port.tensor], port.shape)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    assert {node.output for node in network.nodes} <= set(network.shapes)
    for name, tensor in tensors.items():
        assert tensor.shape[1:] == network.shapes[name]


def kinds(network: Network) -> list[str]:
    return [getattr(node, "kind", type(node).__name__.lower()) for node in network.nodes]


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        pytest.param(
            lambda: [
                layers.Conv2D(8, 3, use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Flatten(),
                layers.Dense(10, activation="softmax"),
            ],
            (6, 6, 2),
            ["convolution", "convolution", "softmax"],
            id="convolution, normalization, dense",
        ),
        pytest.param(
            lambda: [layers.MaxPooling2D(), layers.AveragePooling2D(2, padding="same"), layers.GlobalMaxPooling2D()],
            (10, 10, 3),
            ["max", "average", "max"],
            id="pools",
        ),
        pytest.param(
            lambda: [layers.Dense(5, activation="relu"), layers.Dropout(0.5), layers.Dense(3, activation="sigmoid")],
            (7,),
            ["convolution", "convolution", "sigmoid"],
            id="dense layers",
        ),
    ],
)
def test_a_model_of_layers(model: Any, shape: tuple[int, ...], expected: list[str]):
    made = shaken(keras.Sequential([keras.Input(shape), *model()]))
    network = network_of(made)
    assert kinds(network) == expected
    agree(network, made, [values(11, *shape)])
