"""Recurrent layers: loops written out, one product for each gate."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import anytpu  # noqa: F401  # isort: skip
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

from anytpu import program
from anytpu.chip.graph.nodes import Convolution, HostStep, Network
from anytpu.chip.network import read
from anytpu.chip.quantized.reference import compute as evaluate


def kinds(network: Network) -> Counter[str]:
    return Counter(getattr(node, "kind", type(node).__name__.lower()) for node in network.nodes)


def agrees(given: tuple[int, ...], *stacked: Any, inputs: np.ndarray | None = None) -> Network:
    model: Any = keras.Sequential([keras.Input(given), *stacked])
    random = np.random.default_rng(1)
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(random.normal(size=weight.shape) * 0.4)
    network = read(program.of(model, None, mode="infer", tensors=True, batch_size=8))
    x = random.normal(size=(11, *given)).astype(np.float32) if inputs is None else inputs
    want, port = model.predict(x, verbose=0), network.outputs[0]
    got = evaluate(network, [x])[port.tensor].reshape(-1, *port.shape)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    return network


def test_a_step_of_an_lstm_is_one_product():
    network = agrees((4, 3), layers.LSTM(5, name="lstm"), layers.Dense(2, name="dense"))
    # The first state is 0: its part of the product, the forget gate and the sum with what is forgotten fall away.
    assert kinds(network) == {
        "slice": 4 + 3 + 3 * 4,
        "concatenate": 3,
        "convolution": 1 + 3 + 1,
        "sigmoid": 2 + 3 * 3,
        "tanh": 2 * 4,
        "multiply": 2 + 3 * 3,
        "add": 3,
    }
    weights = [node.weights for node in network.nodes if isinstance(node, Convolution) and "lstm_cell" in node.name]
    assert {each.shape for each in weights} == {(1, 1, 3, 20), (1, 1, 8, 20)}
    assert len({id(each) for each in weights}) == 2, "each step has the same weights, not copies of them"
    assert {node.layer for node in network.nodes} == {"lstm", "lstm/lstm_cell", "dense"}


@pytest.mark.parametrize(
    "stacked",
    [
        pytest.param(lambda: [layers.GRU(4, return_sequences=True), layers.GRU(4, go_backwards=True)], id="GRU"),
        pytest.param(lambda: [layers.GRU(4, reset_after=False)], id="GRU, reset before"),
        pytest.param(lambda: [layers.SimpleRNN(4, return_sequences=True), layers.Dense(2)], id="SimpleRNN"),
        pytest.param(
            lambda: [
                layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
                layers.TimeDistributed(layers.Dense(2)),
                layers.Bidirectional(layers.LSTM(3)),
            ],
            id="both directions",
        ),
        pytest.param(lambda: [layers.LSTM(3, return_sequences=True), layers.Flatten(), layers.Dense(2)], id="flat"),
    ],
)
def test_recurrent_layers(stacked: Any):
    network = agrees((4, 3), *stacked())
    assert not any(isinstance(node, HostStep) for node in network.nodes)


def test_an_embedding_is_looked_up_by_the_host_once():
    indices = np.random.default_rng(0).integers(0, 20, (11, 5)).astype(np.int32)
    network = agrees((5,), layers.Embedding(20, 6, name="embedding"), layers.LSTM(4), layers.Dense(1), inputs=indices)
    (step,) = [node for node in network.nodes if isinstance(node, HostStep)]
    assert (step.kind, step.layer, step.why) == ("embedding", "embedding", "it looks numbers up by an index")
    assert network.shapes[step.output] == (1, 5, 6)


@pytest.mark.parametrize(
    "stacked",
    [
        pytest.param(lambda: [layers.LSTM(4), layers.Dense(2)], id="LSTM"),
        pytest.param(lambda: [layers.GRU(4, return_sequences=True, zero_output_for_mask=True)], id="GRU, zeros"),
        pytest.param(lambda: [layers.Bidirectional(layers.SimpleRNN(3))], id="both directions"),
    ],
)
def test_a_mask_is_made_by_the_host_once_and_chooses_on_the_chip(stacked: Any):
    inputs = np.random.default_rng(0).integers(1, 20, (11, 6)).astype(np.int32)
    inputs[np.arange(6) > np.arange(11)[:, None] % 6] = 0
    network = agrees((6,), layers.Embedding(20, 6, mask_zero=True), *stacked(), inputs=inputs)
    hosted = Counter((node.kind, node.why) for node in network.nodes if isinstance(node, HostStep))
    # What is kept and what is replaced have a mask each, of all time steps.
    assert hosted == {
        ("embedding", "it looks numbers up by an index"): 1,
        ("mask", "it works on booleans, once for all time steps"): 2,
    }


def test_a_scan_in_jax():
    random = np.random.default_rng(0)
    state = {name: random.normal(size=shape).astype(np.float32) for name, shape in {"w": (3, 4), "u": (4, 4)}.items()}

    def step(state: Any, batch: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            h = jnp.tanh(x @ state["w"] + h @ state["u"])
            return h, h * 2

        last, all_of_them = jax.lax.scan(cell, jnp.zeros((batch.shape[0], 4)), batch.swapaxes(0, 1))
        return state, (last, all_of_them.swapaxes(0, 1))

    x = random.normal(size=(11, 5, 3)).astype(np.float32)
    made = program.of(step, (state, x[:8]), mode=None, tensors=True)
    network = read(infers(made))
    tensors = evaluate(network, [x])
    for port, want in zip(network.outputs, step(state, x)[1], strict=True):
        np.testing.assert_allclose(tensors[port.tensor].reshape(-1, *port.shape), want, rtol=1e-4, atol=1e-5)
    assert kinds(network)["convolution"] == 5


def infers(made: Any) -> Any:
    return dataclasses.replace(made, mode="infer")
