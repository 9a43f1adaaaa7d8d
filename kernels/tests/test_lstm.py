"""The LSTM's passes against float64's: sizes, masks, replicas, and derivatives of higher order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("anytpu_kernels", reason="the kernels are not installed: scripts/venv builds them where g++ is")
from anytpu_kernels import lstm_backward, lstm_forward, lstm_weights

EPSILON = float(np.finfo("float32").eps)
SIZES = [(1, 1, 1, 1), (3, 7, 5, 4), (33, 20, 5, 17), (70, 9, 16, 64), (64, 40, 32, 100), (8, 3, 2, 16)]


def operands(batch, time, features, units, masked):
    random = np.random.default_rng(0)
    mask = random.random((batch, time if masked else 0)) > 0.3
    shapes = [(batch, time, features), (batch, units), (batch, units)]
    shapes += [(features, 4 * units), (4 * units,), (units, 4 * units)]
    inputs, hidden, cell, kernel, bias, recurrent = (random.normal(size=shape) / 2 for shape in shapes)
    return inputs, hidden, cell, mask, kernel, bias, recurrent / units**0.5


def lstm(inputs, hidden, cell, mask, kernel, bias, recurrent):
    """Compute an LSTM step by step, with the formulas of its paper."""
    states = []
    for t in range(inputs.shape[1]):
        gates = inputs[:, t] @ kernel + hidden @ recurrent + bias
        into, forget, candidate, out = jnp.split(gates, 4, axis=1)
        new = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(into) * jnp.tanh(candidate)
        keep = mask[:, t, None] if mask.shape[1] else True
        hidden = jnp.where(keep, jax.nn.sigmoid(out) * jnp.tanh(new), hidden)
        cell = jnp.where(keep, new, cell)
        states.append(hidden)
    return hidden, cell, jnp.stack(states, 1)


def reference(given, weigh, dtype):
    """Return the results and the gradients, computed by JAX's differentiation."""
    with jax.enable_x64(True):
        given = [jnp.asarray(one, bool if one.dtype == bool else dtype) for one in given]

        def run(inputs, hidden, cell, *weights):
            return lstm(inputs, hidden, cell, given[3], *weights)

        results, pull = jax.vjp(run, *given[:3], *given[4:])
        inputs, hidden, cell, kernel, bias, recurrent = pull(tuple(jnp.asarray(one, dtype) for one in weigh))
        total = jnp.concatenate([kernel, bias[None], recurrent])
        return [np.asarray(one, "float64") for one in (*results, inputs, hidden, cell, total)]


def ours(given, weigh, every):
    given = [jnp.asarray(one, bool if one.dtype == bool else "float32") for one in given]

    @jax.jit
    def run(*given):
        *results, rows, gates, cells, tangents = lstm_forward(*given, every=every, keeps=True)
        outer = jnp.asarray(weigh[2], "float32")[:, : None if every else 0]
        last = (jnp.asarray(one, "float32") for one in weigh[:2])
        *back, slopes = lstm_backward(*last, outer, given[3], gates, cells, tangents, given[4], given[6])
        return *results, *back, lstm_weights(rows, slopes)[0]

    return run(*given)


@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_results_and_gradients(sizes, masked, every):
    given = operands(*sizes, masked)
    random = np.random.default_rng(1)
    weigh = [random.normal(size=shape) for shape in (given[1].shape, given[1].shape, (*sizes[:2], sizes[3]))]
    weigh[2] = weigh[2] if every else 0 * weigh[2]
    exact, single = (reference(given, weigh, dtype) for dtype in ("float64", "float32"))
    terms = sizes[1] * (sizes[2] + sizes[3])
    for made, right, other in zip(ours(given, weigh, every), exact, single, strict=True):
        if not made.size:
            continue
        scale = np.abs(right).max()
        error, theirs = (np.abs(np.asarray(one) - right).max() / scale for one in (made, other))
        assert error <= max(2 * theirs, EPSILON * max(4, terms**0.5))


def test_what_is_not_kept_is_not_made():
    given = operands(4, 6, 3, 5, masked=False)
    given = [jnp.asarray(one, bool if one.dtype == bool else "float32") for one in given]
    shapes = [one.shape for one in lstm_forward(*given, every=False, keeps=False)]
    assert shapes == [(4, 5), (4, 5), (4, 0, 5), (0, 4, 9), (0, 4, 20), (0, 4, 5), (0, 4, 5)]


def test_gradients_of_groups_of_rows():
    random = np.random.default_rng(0)
    rows, slopes = random.normal(size=(7, 12, 9)).astype("float32"), random.normal(size=(7, 12, 20)).astype("float32")
    made = lstm_weights(jnp.asarray(rows), jnp.asarray(slopes), replicas=4)
    groups = rows.reshape(7, 4, 3, 9).astype("float64"), slopes.reshape(7, 4, 3, 20).astype("float64")
    np.testing.assert_allclose(made, np.einsum("trbk,trbg->rkg", *groups), rtol=1e-5, atol=1e-5)


def test_each_replica_with_weights_of_its_own():
    given = operands(3, 5, 4, 6, masked=False)
    given = [jnp.asarray(one, bool if one.dtype == bool else "float32") for one in given]
    kernels = jnp.stack([given[4], -given[4]])

    def last(kernel):
        return lstm_forward(*given[:4], kernel, *given[5:], every=False, keeps=False)[0]

    np.testing.assert_array_equal(jax.vmap(last)(kernels), jnp.stack([last(one) for one in kernels]))
