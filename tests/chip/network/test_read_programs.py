"""Programs of every kind: plain JAX, files, other batches, whole numbers that go in, half precision."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import anytpu  # noqa: F401  # isort: skip
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from anytpu import program
from anytpu.chip.graph.nodes import Convolution, Elementwise, Network
from anytpu.chip.graph.shapes import canonical, canonical_shape
from anytpu.chip.network import read
from anytpu.chip.quantized.reference import compute as evaluate

RANDOM = np.random.default_rng(0)
STATE = {
    "first": RANDOM.normal(size=(6, 5)).astype(np.float32),
    "bias": RANDOM.normal(size=5).astype(np.float32),
    "second": RANDOM.normal(size=(5, 2)).astype(np.float32),
}


def apply(state: Any, x: Any) -> Any:
    return jnp.tanh(jax.nn.relu(x @ state["first"] + state["bias"]) @ state["second"])


def infers(function: Any, state: Any, batch: Any) -> Any:
    def step(state: Any, batch: Any) -> Any:
        return state, function(state, batch)

    return dataclasses.replace(program.of(step, (state, batch), tensors=True), mode="infer")


def outputs(network: Network, *inputs: np.ndarray) -> list[np.ndarray]:
    tensors = evaluate(network, inputs)
    return [tensors[port.tensor].reshape(-1, *port.shape) for port in network.outputs]


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_a_function_of_any_batch(rows: int):
    x = RANDOM.normal(size=(11, 6)).astype(np.float32)
    network = read(infers(apply, STATE, x[:rows]))
    np.testing.assert_allclose(outputs(network, x)[0], apply(STATE, x), rtol=1e-5, atol=1e-6)


def test_under_vmap():
    x = RANDOM.normal(size=(11, 6)).astype(np.float32)

    def one(state: Any, x: Any) -> Any:
        return jax.nn.softmax(state["second"].T @ jnp.tanh(state["first"].T @ x + state["bias"]))

    def batched(state: Any, x: Any) -> Any:
        return jax.vmap(one, (None, 0))(state, x)

    network = read(infers(batched, STATE, x[:8]))
    np.testing.assert_allclose(outputs(network, x)[0], batched(STATE, x), rtol=1e-5, atol=1e-6)
    assert [type(node).__name__ for node in network.nodes] == ["Convolution", "Function", "Convolution", "HostStep"]


def test_the_batch_among_other_axes():
    x = RANDOM.normal(size=(11, 3, 6)).astype(np.float32)

    def merged(state: Any, x: Any) -> Any:
        return apply(state, x.reshape(-1, 6)).reshape(x.shape[0], 3, 2)

    network = read(infers(merged, STATE, x[:8]))
    np.testing.assert_allclose(outputs(network, x)[0], merged(STATE, x), rtol=1e-5, atol=1e-6)
    assert [type(node).__name__ for node in network.nodes] == ["Convolution", "Convolution", "Function"]


def test_a_program_file(tmp_path: Path):
    model: Any = keras.Sequential([keras.Input((6, 6, 2)), keras.layers.Conv2D(3, 3, activation="relu")])
    model.add(keras.layers.Dense(2, activation="softmax"))
    path = tmp_path / "model.anytpu"
    program.write(program.of(model, None, mode="infer", tensors=True, batch_size=8), path)
    network = read(program.of(path, tensors=True))
    x = RANDOM.normal(size=(11, 6, 6, 2)).astype(np.float32)
    np.testing.assert_allclose(outputs(network, x)[0], model.predict(x, verbose=0), rtol=1e-4, atol=1e-6)
    assert network.nodes[0].layer == model.layers[0].name


def test_pictures_in_whole_numbers():
    x = RANDOM.integers(0, 256, (11, 6)).astype(np.uint8)

    def function(state: Any, x: Any) -> Any:
        return apply(state, x.astype(jnp.float32) / 255)

    network = read(infers(function, STATE, x[:8]))
    assert network.inputs[0].dtype == "uint8"
    assert isinstance(network.nodes[0], Convolution) and network.nodes[0].inputs == ("input",)
    np.testing.assert_allclose(outputs(network, x)[0], function(STATE, x), rtol=1e-4, atol=1e-5)


def test_half_precision_is_read_as_real_numbers():
    x = RANDOM.normal(size=(11, 6)).astype(np.float32)
    state = jax.tree.map(lambda one: one.astype(jnp.bfloat16), STATE)

    def function(state: Any, x: Any) -> Any:
        return apply(state, x.astype(jnp.bfloat16)).astype(jnp.float32)

    network = read(infers(function, state, x[:8]))
    assert [type(node).__name__ for node in network.nodes] == ["Convolution", "Convolution", "Function"]
    np.testing.assert_allclose(outputs(network, x)[0], function(state, x), rtol=0.05, atol=0.05)


def test_weights_that_depend_on_nothing_are_computed_while_reading():
    x = RANDOM.normal(size=(11, 6)).astype(np.float32)

    def function(state: Any, x: Any) -> Any:
        normal = state["first"] / jnp.linalg.norm(state["first"], axis=0, keepdims=True)
        kept = jax.random.uniform(jax.random.key(3), (5,)) > 0.5
        return x @ jnp.where(kept, normal, 0) + jnp.cumsum(state["bias"])

    network = read(infers(function, STATE, x[:8]))
    assert len(network.nodes) == 1
    np.testing.assert_allclose(outputs(network, x)[0], function(STATE, x), rtol=1e-4, atol=1e-5)


def test_an_input_that_is_an_output():
    x = RANDOM.normal(size=(11, 6)).astype(np.float32)
    network = read(infers(lambda state, x: (x, x[:, None] * 1, apply(state, x)), STATE, x[:8]))
    got = outputs(network, x)
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[1], x[:, None])
    assert network.outputs[0].tensor == "input"


@pytest.mark.parametrize("shape", [(), (7,), (5, 7), (2, 5, 7), (2, 3, 5, 7)])
def test_shapes_go_there_and_back(shape: tuple[int, ...]):
    x = RANDOM.normal(size=(4, *shape))
    assert canonical(x, shape).shape == (4, *canonical_shape(shape))
    np.testing.assert_array_equal(canonical(x, shape).reshape(x.shape), x)


@pytest.mark.parametrize(
    "names", [("tanh", "dense"), ("tanh", "tanh_2"), ("dense", "tanh_3"), ("%0", "%1"), ("%a", "%a/1x1x6"), ("%2", "x")]
)
def test_inputs_that_are_called_as_nodes_would_be(names: tuple[str, str]):
    x = {name: RANDOM.normal(size=(8, 6)).astype(np.float32) for name in names}

    def function(state: Any, batch: Any) -> Any:
        made = jnp.tanh(batch[names[0]] @ state["first"]) * (batch[names[1]] @ state["first"])
        return made, jnp.tanh(made)

    network = read(infers(function, STATE, x))
    made = [*(port.tensor for port in network.inputs), *(node.output for node in network.nodes)]
    assert sorted(made) == sorted(set(made)) == sorted(network.shapes)
    given = [x[port.tensor] for port in network.inputs]
    for got, want in zip(outputs(network, *given), function(STATE, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.mean(x, axis=1, keepdims=True) - x,
        lambda x: x - jnp.mean(x, axis=1, keepdims=True),
        lambda x: jnp.tanh(jnp.max(x, axis=1, keepdims=True) - jnp.tanh(x)) * 2,
        lambda x: (
            jnp.broadcast_to(jnp.mean(x, 1, keepdims=True), x.shape)
            - jnp.broadcast_to(jnp.max(x, 1, keepdims=True), x.shape)
        ),
    ],
)
def test_differences_from_what_is_the_same_at_every_position(function: Any):
    x = RANDOM.normal(size=(8, 5, 4)).astype(np.float32)
    network = read(infers(lambda _, given: function(given), (), x))
    for node in network.nodes:
        if isinstance(node, Elementwise):
            assert network.shapes[node.inputs[0]] == network.shapes[node.output]
    np.testing.assert_allclose(outputs(network, x)[0], function(x), rtol=1e-5, atol=1e-6)
