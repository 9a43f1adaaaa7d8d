"""Functions of one number: which are folded into what is before them, and that all others stay what they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import anytpu  # noqa: F401  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu import program
from anytpu.chip.graph.nodes import Convolution, Function, Network
from anytpu.chip.network import read
from anytpu.chip.quantized.reference import compute as evaluate

RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.normal(size=(8, 8)).astype(np.float32)
EXAMPLES = RANDOM.normal(size=(16, 8)).astype(np.float32)


def network_of(function: Callable[[Any], Any]) -> Network:
    def step(state: Any, batch: Any) -> Any:
        return state, function(batch)

    return read(dataclasses.replace(program.of(step, ((), EXAMPLES), tensors=True), mode="infer"))


def magic(x: Any) -> Any:
    return (x + np.float32(1.5 * 2**10)) - np.float32(1.5 * 2**10)


OTHERS = {
    "rounded to sixteenths": lambda x: jnp.round(x * 16) / 16,
    "rounded down": lambda x: jnp.floor(x * 16) / 16,
    "rounded up": lambda x: jnp.ceil(x * 16) / 16,
    "rounded by a great number": magic,
    "rounded by a cast": lambda x: (x * 16).astype(jnp.int32).astype(jnp.float32) / 16,
    "nothing near 0": lambda x: jnp.where(jnp.abs(x) < 0.06, 0.0, x),
    "a step in a bend": lambda x: jnp.where(x > 0.01, x, 0.0),
    "nothing far away": lambda x: jnp.where(x > 300, 0.0, x),
    "a wave": lambda x: x + 0.1 * jnp.sin(x * 2 * np.pi * 16),
    "a rest": lambda x: x - jnp.remainder(x, 1 / 16),
    "the other side of a bend": lambda x: jnp.where(x > 0.5, 0.5 + 0 * x, -x),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("size", [0.02, 1.0, 300.0])
def test_what_is_no_line_stays_a_function(name: str, size: float):
    function = OTHERS[name]
    network = network_of(lambda x: function(x @ WEIGHTS))
    given = EXAMPLES * np.float32(size)
    want = np.asarray(function(given @ WEIGHTS))
    got = evaluate(network, [given])[network.outputs[0].tensor].reshape(want.shape)
    near = np.isclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    assert near.mean() > 0.97  # what lies at a step may fall to its other side
    assert [node.kind for node in network.nodes if isinstance(node, Function)] == ["function"]


LINES = {
    "relu": (jax.nn.relu, (1, 0, 0, math.inf)),
    "relu, chosen": (lambda x: jnp.where(x > 0, x, 0.0), (1, 0, 0, math.inf)),
    "relu, chosen the other way": (lambda x: jnp.where(x <= 0, 0.0, x), (1, 0, 0, math.inf)),
    "relu6": (jax.nn.relu6, (1, 0, 0, 6)),
    "clip": (lambda x: jnp.clip(x, -0.5, 1.5), (1, 0, -0.5, 1.5)),
    "clamp": (lambda x: jax.lax.clamp(-0.5, x, 1.5), (1, 0, -0.5, 1.5)),
    "hard tanh": (jax.nn.hard_tanh, (1, 0, -1, 1)),
    "hard sigmoid": (jax.nn.hard_sigmoid, (1 / 6, 0.5, 0, 1)),
    "turned": (lambda x: 1 - jnp.maximum(-x, -2.0) * 3, (3, 1, -math.inf, 7)),
    "turned, chosen": (lambda x: jnp.where(-x < -1, -1.0, -x), (-1, 0, -1, math.inf)),
    "half": (lambda x: x / 2 + 1, (0.5, 1, -math.inf, math.inf)),
    "of itself": (lambda x: (x + x) - x * 0.5, (1.5, 0, -math.inf, math.inf)),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_become_part_of_the_layer_before_them(name: str):
    function, (factor, offset, low, high) = LINES[name]
    network = network_of(lambda x: function(x @ WEIGHTS))
    (node,) = network.nodes
    assert isinstance(node, Convolution)
    np.testing.assert_allclose(node.weights.reshape(8, 8), WEIGHTS * np.float32(factor), rtol=1e-6)
    np.testing.assert_allclose(node.bias, offset, rtol=1e-6)
    bounds = (-math.inf if node.low is None else node.low, math.inf if node.high is None else node.high)
    np.testing.assert_allclose(bounds, (low, high), rtol=1e-6)


def test_what_changes_nothing_is_left_out():
    assert [type(node) for node in network_of(lambda x: (-(-x * 4)) / 4 @ WEIGHTS).nodes] == [Convolution]
