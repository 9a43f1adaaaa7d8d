"""Keras models of the real digits: in whole numbers as right as before; what the host does stays exact.

Only the last layer learns, by least squares, which takes no time; models that learned as a whole are in
benchmarks/chip_accuracy.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anytpu as tpu  # isort: skip
import keras

from anytpu.chip.graph.nodes import HostStep, Network
from anytpu.chip.network import read
from anytpu.chip.quantized import quantize, reference, summarize
from anytpu.chip.quantized.reference import compute as evaluate
from anytpu.program import of

layers = keras.layers
MODELS = {
    "mlp": lambda: [layers.Flatten(), layers.Dense(256, "relu")],
    "cnn": lambda: [
        layers.Conv2D(16, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Flatten(),
    ],
    "lstm": lambda: [
        layers.Reshape((8, 8)),
        layers.LSTM(128, kernel_initializer=keras.initializers.RandomNormal(stddev=1.0)),
    ],
}


def network_of(model: keras.Model) -> Network:
    return read(of(model, None, "infer", True, batch_size=8))


@pytest.fixture(scope="module")
def images() -> tuple[Any, Any]:
    return tpu.pipeline.digits(seed=1)


@pytest.fixture(scope="module", params=sorted(MODELS))
def trained(request: pytest.FixtureRequest, images: tuple[Any, Any]) -> Network:
    keras.utils.set_random_seed(0)
    x, y = images[0]
    body = keras.Sequential([keras.Input((8, 8, 1)), *MODELS[request.param]()])
    last = layers.Dense(10)
    model = keras.Sequential([body, last])
    features = np.asarray(body(x))
    features = np.concatenate([features, np.ones((len(x), 1), np.float32)], axis=1).astype(np.float64)
    wanted = features.T @ (np.eye(10)[y] * 20 - 10)
    solved = np.linalg.solve(features.T @ features + 3.0 * np.eye(features.shape[1]), wanted)
    model.build((None, 8, 8, 1))
    last.set_weights([solved[:-1], solved[-1]])
    return network_of(model)


@pytest.mark.parametrize("bits", [8, 16])
def test_whole_numbers_know_the_digits(trained: Network, images: tuple[Any, Any], bits: int):
    (x, _), (x_test, y_test) = images
    quantized = quantize(trained, x[:256], bits=bits)
    before, after = (
        (reference.outputs(each, reference.compute(each, [x_test]))[0].argmax(1) == y_test).mean()
        for each in (trained, quantized)
    )
    assert before > 0.88
    # Of 359 images, four: least squares leave many close calls.
    assert abs(after - before) <= 4.01 / 359
    assert min(summarize(trained, quantized, x[:256]).output_sqnr_db) > {8: 22, 16: 28}[bits]


def test_weights_take_a_quarter(trained: Network, images: tuple[Any, Any]):
    x = images[0][0][:64]
    quantized = quantize(trained, x)
    summary = summarize(trained, quantized, x)
    # An int8 and, for each of at least 9 weights of a channel, the scale and the bias.
    assert 2.3 < summary.float_bytes / summary.quantized_bytes < 4


def test_what_the_host_does_stays_exact():
    keras.utils.set_random_seed(0)
    words = [layers.Embedding(300, 8), layers.GlobalAveragePooling1D(), layers.Dense(5), layers.Softmax()]
    network = network_of(keras.Sequential([keras.Input((6,), dtype="int32"), *words]))
    tokens = np.random.default_rng(0).integers(0, 300, (40, 6)).astype(np.int32)
    quantized = quantize(network, tokens)
    hosts = [node for node in quantized.nodes if isinstance(node, HostStep)]
    assert [node.kind for node in hosts] == ["embedding", "softmax"]
    # Indices go in and shares come out as they are; what the embedding gives to the chip has integers.
    assert network.inputs[0].tensor not in quantized.quantizations
    assert hosts[0].output in quantized.quantizations
    assert hosts[1].inputs[0] in quantized.quantizations
    assert hosts[1].output not in quantized.quantizations
    tensors = reference.compute(quantized, [tokens])
    assert np.array_equal(tensors[network.inputs[0].tensor].reshape(40, 6), tokens)
    (shares,) = reference.outputs(quantized, tensors)
    assert np.allclose(shares.sum(1), 1, atol=1e-5)
    exact = evaluate(network, [tokens])[network.outputs[0].tensor].reshape(40, 5)
    assert np.abs(shares - exact).max() < 0.01


def test_a_masked_lstm_does_not_clip_rows_of_other_lengths():
    random = np.random.default_rng(1)
    model = keras.Sequential([keras.Input((8, 3)), layers.Masking(), layers.LSTM(8)])
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(random.normal(size=weight.shape) * 0.4)
    examples, rows = (random.normal(size=(256, 8, 3)).astype(np.float32) for _ in range(2))
    for given in (examples, rows):
        given[np.arange(8) >= random.integers(1, 9, 256)[:, None]] = 0
    program = tpu.chip.compile(model, examples, activation_bits=16, batch=8)
    want = np.asarray(model(rows))
    noise = want - np.asarray(program.run(rows))
    assert 10 * np.log10(np.square(want).mean() / np.square(noise).mean()) > 43
