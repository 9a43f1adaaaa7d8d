"""The passes of the LSTM and of the GRU against float64's: sizes, masks, replicas."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("anytpu_kernels", reason="the kernels are not installed: scripts/venv builds them where g++ is")
from anytpu_kernels import gru_backward, gru_forward, gru_weights, lstm_backward, lstm_forward, lstm_weights

EPSILON = float(np.finfo("float32").eps)
SIZES = [(1, 1, 1, 1), (3, 7, 5, 4), (33, 20, 5, 17), (70, 9, 16, 64), (64, 40, 32, 100), (8, 3, 2, 16)]


def operands(layer, batch, time, features, units, masked):
    random = np.random.default_rng(0)
    gates = layer.gates * units
    mask = random.random((batch, time if masked else 0)) > 0.3
    shapes = [(batch, time, features), *[(batch, units)] * layer.states]
    shapes += [(features, gates), (2, gates) if layer is GRU else (gates,), (units, gates)]
    inputs, *states, kernel, bias, recurrent = (random.normal(size=shape) / 2 for shape in shapes)
    return inputs, *states, mask, kernel, bias, recurrent / units**0.5


def lstm(states, inputs, kernel, bias, recurrent):
    """Compute a step of an LSTM, with the formulas of its paper."""
    hidden, cell = states
    into, forget, candidate, out = jnp.split(inputs @ kernel + hidden @ recurrent + bias, 4, axis=1)
    cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(candidate)
    return jax.nn.sigmoid(out) * jnp.tanh(cell), cell


def gru(states, inputs, kernel, bias, recurrent):
    """Compute a step of a GRU, as Keras defines it with `reset_after`."""
    (hidden,) = states
    inner = jnp.split(hidden @ recurrent + bias[1], 3, axis=1)
    outer = jnp.split(inputs @ kernel + bias[0], 3, axis=1)
    update, reset = (jax.nn.sigmoid(outer[i] + inner[i]) for i in range(2))
    return (update * hidden + (1 - update) * jnp.tanh(outer[2] + reset * inner[2]),)


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer, its passes, and the step to compare them with; `kept`: residuals that `backward` reads."""

    step: Callable
    forward: Callable
    backward: Callable
    weights: Callable
    states: int
    gates: int
    kept: slice


LSTM = Layer(lstm, lstm_forward, lstm_backward, lstm_weights, 2, 4, slice(1, None))
GRU = Layer(gru, gru_forward, gru_backward, gru_weights, 1, 3, slice(None))
LAYERS = pytest.mark.parametrize("layer", [LSTM, GRU], ids=["lstm", "gru"])


def reference(layer, given, weigh, dtype):
    """Return the results and the gradients, computed by JAX's differentiation."""
    at = 1 + layer.states

    def run(inputs, *operands):
        states, weights = operands[: layer.states], operands[layer.states :]
        kept = given[at] if given[at].shape[1] else np.ones(inputs.shape[:2], bool)

        def step(states, row):
            inputs, keep = row
            after = layer.step(states, inputs, *weights)
            states = tuple(jnp.where(keep[:, None], new, old) for new, old in zip(after, states, strict=True))
            return states, states[0]

        states, every = jax.lax.scan(step, states, (jnp.swapaxes(inputs, 0, 1), kept.T))
        return *states, jnp.swapaxes(every, 0, 1)

    with jax.enable_x64(True):
        operands, weigh = ([jnp.asarray(one, dtype) for one in some] for some in (given[:at] + given[at + 1 :], weigh))
        results, pull = jax.vjp(run, *operands)
        return [np.asarray(one, "float64") for one in (*results, *pull(tuple(weigh)))]


def ours(layer, given, weigh, every):
    @jax.jit
    def run(*given):
        at = 1 + layer.states
        made: Any = layer.forward(*given, every=every, keeps=True)
        results, residuals = made[:at], made[at:]
        outer = jnp.asarray(weigh[-1], "float32")[:, : None if every else 0]
        last = (jnp.asarray(one, "float32") for one in weigh[:-1])
        weights = given[at + 1], given[at + 3]
        *back, slopes = layer.backward(*last, outer, given[at], *residuals[layer.kept], *weights)
        return *results, *back, *(one[0] for one in layer.weights(residuals[0], slopes))

    return run(*single(given))


def single(given):
    return [jnp.asarray(one, bool if one.dtype == bool else "float32") for one in given]


@LAYERS
@pytest.mark.parametrize(("masked", "every"), [(False, False), (True, True)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_results_and_gradients(layer, sizes, masked, every):
    given = operands(layer, *sizes, masked)
    random = np.random.default_rng(1)
    shapes = [given[1].shape] * layer.states + [(*sizes[:2], sizes[3])]
    weigh = [random.normal(size=shape) for shape in shapes]
    weigh[-1] = weigh[-1] if every else 0 * weigh[-1]
    exact, plain = (reference(layer, given, weigh, dtype) for dtype in ("float64", "float32"))
    terms = sizes[1] * (sizes[2] + sizes[3])
    for made, right, other in zip(ours(layer, given, weigh, every), exact, plain, strict=True):
        if not made.size:
            continue
        scale = np.abs(right).max()
        error, theirs = (np.abs(np.asarray(one) - right).max() / scale for one in (made, other))
        assert error <= max(2 * theirs, EPSILON * max(4, terms**0.5))


def test_what_is_not_kept_is_not_made():
    given = single(operands(LSTM, 4, 6, 3, 5, masked=False))
    shapes = [one.shape for one in lstm_forward(*given, every=False, keeps=False)]
    assert shapes == [(4, 5), (4, 5), (4, 0, 5), (0, 4, 9), (0, 4, 20), (0, 4, 5), (0, 4, 5)]
    given = single(operands(GRU, 4, 6, 3, 5, masked=False))
    shapes = [one.shape for one in gru_forward(*given, every=False, keeps=False)]
    assert shapes == [(4, 5), (4, 0, 5), (0, 4, 9), (0, 4, 20)]


@LAYERS
def test_gradients_of_groups_of_rows(layer):
    random = np.random.default_rng(0)
    rows, slopes = random.normal(size=(7, 12, 9)).astype("float32"), random.normal(size=(7, 12, 20)).astype("float32")
    made = layer.weights(jnp.asarray(rows), jnp.asarray(slopes), replicas=4)
    for replica in range(4):
        part = slice(3 * replica, 3 * replica + 3)
        alone = layer.weights(jnp.asarray(rows[:, part]), jnp.asarray(slopes[:, part]))
        for together, apart in zip(made, alone, strict=True):
            np.testing.assert_allclose(together[replica], apart[0], rtol=1e-5, atol=1e-5)


@LAYERS
def test_each_replica_with_weights_of_its_own(layer):
    at = 2 + layer.states
    given = single(operands(layer, 3, 5, 4, 6, masked=False))
    kernels = jnp.stack([given[at], -given[at]])

    def last(kernel):
        return layer.forward(*given[:at], kernel, *given[at + 1 :], every=False, keeps=False)[0]

    np.testing.assert_array_equal(jax.vmap(last)(kernels), jnp.stack([last(one) for one in kernels]))
