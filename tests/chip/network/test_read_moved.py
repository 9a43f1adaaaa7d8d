"""Layers that move or repeat numbers, or are made of plain convolutions: all on the chip, and what the model gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anytpu as tpu  # isort: skip
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

from anytpu.chip.graph.nodes import HostStep

RANDOM = np.random.default_rng(0)


def sequential(shape: tuple[int, ...], *stacked: Any) -> Any:
    model = keras.Sequential([keras.Input(shape), *stacked])
    for weight in model.weights:
        weight.assign(RANDOM.normal(size=weight.shape) * 0.3 + weight.path.endswith(("variance", "gamma")))
    return model


def two_branches(layer: Any) -> Any:
    given = keras.Input((6, 5, 3))
    branches = [layers.Conv2D(4, 3, padding="same")(given), layers.Conv2D(4, 1)(given)]
    model = keras.Model(given, layer()(branches))
    for weight in model.weights:
        weight.assign(RANDOM.normal(size=weight.shape) * 0.3)
    return model


def convolved(function: Callable[[Any], Any]) -> Any:
    kernel = RANDOM.normal(size=(3, 3, 2, 4)).astype(np.float32)

    def model(weights: Any, x: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return function(jax.lax.conv_general_dilated(x, weights, (1, 1), "SAME", dimension_numbers=dims))

    return model, kernel


def channels_first_function() -> Any:
    weights = {"k": RANDOM.normal(size=(4, 3, 3, 3)).astype("f4"), "w": RANDOM.normal(size=(24, 5)).astype("f4")}

    def model(weights: Any, x: Any) -> Any:
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, weights["k"], (1, 1), "VALID"))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 1, 2), (1, 1, 1, 2), "VALID")
        return x.reshape(len(x), -1) @ weights["w"]

    return model, weights


CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...], float]] = {
    "nearest": (
        lambda: sequential((4, 3, 2), layers.Conv2D(3, 2), layers.UpSampling2D((2, 3)), layers.Conv2D(2, 2)),
        (4, 3, 2),
        32,
    ),
    "nearest, last": (lambda: sequential((4, 3, 2), layers.Conv2D(3, 2), layers.UpSampling2D()), (4, 3, 2), 35),
    "nearest, of a sequence": (lambda: sequential((5, 3), layers.Conv1D(4, 2), layers.UpSampling1D(3)), (5, 3), 35),
    "bilinear": (
        lambda: sequential((4, 5, 2), layers.Conv2D(3, 2), layers.UpSampling2D(2, interpolation="bilinear")),
        (4, 5, 2),
        30,
    ),
    "transposed": (
        lambda: sequential(
            (4, 5, 3), layers.Conv2DTranspose(5, 3, strides=2, padding="same", activation="relu"), layers.Conv2D(2, 3)
        ),
        (4, 5, 3),
        30,
    ),
    "transposed, not padded": (
        lambda: sequential((3, 6, 5), layers.Conv2DTranspose(4, (2, 5), strides=(3, 2))),
        (3, 6, 5),
        30,
    ),
    "transposed, of a sequence": (
        lambda: sequential((5, 3), layers.Conv1DTranspose(4, 4, strides=3, padding="same")),
        (5, 3),
        30,
    ),
    "maximum": (lambda: two_branches(layers.Maximum), (6, 5, 3), 30),
    "minimum": (lambda: two_branches(layers.Minimum), (6, 5, 3), 28),
    "channels first": (
        lambda: sequential(
            (3, 8, 9),
            layers.Conv2D(4, 3, data_format="channels_first", padding="same"),
            layers.BatchNormalization(axis=1),
            layers.ReLU(),
            layers.MaxPooling2D(2, data_format="channels_first"),
            layers.DepthwiseConv2D(3, data_format="channels_first"),
            layers.GlobalAveragePooling2D(data_format="channels_first"),
            layers.Dense(3),
        ),
        (3, 8, 9),
        26,
    ),
    "channels first, flattened": (
        lambda: sequential(
            (3, 5, 5),
            layers.Conv2D(4, 3, data_format="channels_first"),
            layers.Flatten(data_format="channels_first"),
            layers.Dense(3),
        ),
        (3, 5, 5),
        30,
    ),
    "channels first, flattened by JAX": (channels_first_function, (3, 5, 7), 28),
    "permuted": (
        lambda: sequential((4, 3, 2), layers.Conv2D(3, 1), layers.Permute((2, 1, 3)), layers.Conv2D(2, 2)),
        (4, 3, 2),
        30,
    ),
    "repeated vector": (
        lambda: sequential((5,), layers.Dense(4), layers.RepeatVector(3), layers.Conv1D(2, 2)),
        (5,),
        30,
    ),
    "resized by JAX": (lambda: convolved(lambda x: jax.image.resize(x, (len(x), 10, 7, 4), "nearest")), (5, 6, 2), 35),
}
"""By name: the model, the shape of an example, and the smallest signal-to-quantization-noise ratio in dB."""

HOSTED = {"channels first": 1, "channels first, flattened": 1, "channels first, flattened by JAX": 1}
"""Steps of the host: the input's channels are put last."""


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_on_the_chip(name: str):
    make, shape, least = CASES[name]
    x, job = RANDOM.normal(size=(64, *shape)).astype(np.float32), make()
    model, state = job if isinstance(job, tuple) else (job, None)
    program = tpu.chip.compile(model, x, state=state, batch=4)
    assert program.network is not None and program.summary is not None
    assert sum(isinstance(node, HostStep) for node in program.network.nodes) == HOSTED.get(name, 0)
    assert min(program.summary.output_sqnr_db) > least
    wanted = np.asarray(model(x[:9]) if state is None else model(state, x[:9]))
    found = program.run(x[:9])
    assert found.shape == wanted.shape
    assert 10 * np.log10((wanted**2).mean() / ((wanted - found) ** 2).mean()) > least - 2


def test_a_transposed_convolution_of_the_host_has_its_reason():
    def model(weights: Any, x: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(
            x, weights["k"], (1, 1), [(0, 0)] * 2, lhs_dilation=(2, 2), rhs_dilation=(2, 1), dimension_numbers=dims
        )
        return y.reshape(len(y), -1) @ weights["w"]

    weights = {"k": np.ones((2, 2, 3, 2), np.float32), "w": np.ones((80, 2), np.float32)}
    x = RANDOM.normal(size=(9, 4, 5, 3)).astype(np.float32)
    program = tpu.chip.compile(model, x, state=weights, batch=4)
    assert program.network is not None
    assert [node.why for node in program.network.nodes if isinstance(node, HostStep)] == [
        "it is a transposed convolution with gaps in its kernel, steps over its results, or too many positions"
    ]


def _channels_first(weights: Any, x: Any) -> Any:
    return jax.lax.conv_general_dilated(x, weights["k"], (1, 1), "SAME")


def _windows(x: Any, start: float) -> Any:
    return jax.lax.reduce_window(x, start, jax.lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "VALID")


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda weights, x: jax.image.resize(x @ weights["w"], (len(x), 8, 4, 4), "bilinear"), (4, 5, 3)),
        (lambda weights, x: jnp.transpose(x @ weights["w"], (0, 2, 1, 3)), (2, 2000, 3)),
        (lambda weights, x: jnp.pad(_channels_first(weights, x), ((0, 0), (0, 1), (0, 0), (0, 2))), (3, 4, 5)),
        (
            lambda weights, x: jax.lax.pad(
                _channels_first(weights, x), 2.0, ((0, 0, 0), (-1, 2, 1), (-1, 0, 1), (0, 2, 0))
            ),
            (3, 4, 5),
        ),
        (lambda weights, x: _windows(_channels_first(weights, x), 0.0), (3, 4, 5)),
    ],
    ids=["the batch is no first axis", "many columns", "channels added", "gaps added", "window from 0"],
)
def test_what_the_chip_does_not_move_is_left_to_the_host(function: Any, shape: tuple[int, ...]):
    weights = {"k": RANDOM.normal(size=(4, 3, 3, 3)).astype("f4"), "w": RANDOM.normal(size=(3, 4)).astype("f4")}
    x = RANDOM.normal(size=(8, *shape)).astype(np.float32)
    program = tpu.chip.compile(function, x, state=weights, batch=4)
    assert program.network is not None
    assert 0 < len(program.network.nodes) < 10
    wanted, found = np.asarray(function(weights, x)), program.run(x)
    assert np.abs(wanted - found).max() < 0.03 * np.ptp(wanted)
