"""Loops whose turns are small become one kernel on the CPU; the numbers stay what they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.engine.kernels import fast_kernels
from engine.kernel_switch import compiled

MARK = 'xla_cpu_small_call = "true"'


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def network(w: Any, v: Any, x: Any, y: Any) -> Any:
    """Train on one example after the other."""

    def loss(params: Any, i: Any) -> Any:
        w, v = params
        return -jax.nn.log_softmax(jax.nn.sigmoid(x[i] @ w) @ v.T) @ y[i]

    def step(i: Any, params: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, i))

    return jax.lax.fori_loop(0, len(x), step, (w, v))


def over_lanes(*args: Any) -> Any:
    return jax.vmap(network, in_axes=(None, None, 0, 0), axis_size=1)(args[0], args[1], args[2][None], args[3][None])


def cumulated(x: Any) -> Any:
    return jax.lax.scan(lambda total, row: (total + row, jnp.where(total > 0, total, -row)), jnp.zeros(4), x)


def halved(x: Any) -> Any:
    return jax.lax.while_loop(lambda pair: pair[0].sum() > 1, lambda pair: (pair[0] / 2, pair[1] + 1), (x, 0))


NETWORK = (floats(5, 32), floats(3, 32), floats(20, 5), np.eye(3, dtype="float32")[np.arange(20) % 3])
SMALL = {
    "network": (network, NETWORK),
    "one lane": (over_lanes, NETWORK),
    "scan": (cumulated, (floats(9, 4),)),
    "while": (halved, (np.abs(floats(6)) * 100,)),
}


def turned(body: Any, x: np.ndarray) -> Any:
    return (lambda x: jax.lax.fori_loop(0, 3, lambda _, x: body(x), x), (x,))


LARGE = {
    "large arrays": turned(lambda x: x + 1.0, np.zeros((64, 64), "float32")),
    "products of matrices": turned(lambda x: x @ x, floats(8, 8)),
    "sorting": turned(jnp.sort, floats(8)),
    "a call of the host": turned(
        lambda x: jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct((8,), "float32"), x), floats(8)
    ),
}


def lowered(function: Any, args: Any) -> str:
    with fast_kernels():
        return jax.jit(lambda *args: function(*args)).lower(*args).as_text()


@pytest.mark.parametrize("name", SMALL)
def test_a_small_loop_is_one_kernel_with_the_same_numbers(name):
    function, args = SMALL[name]
    assert MARK in lowered(function, args)
    assert MARK not in jax.jit(lambda *args: function(*args)).lower(*args).as_text()
    plain, fast = (compiled(function, *args, fast=fast) for fast in (False, True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6), fast, plain)


@pytest.mark.parametrize("name", LARGE)
def test_any_other_loop_stays(name):
    function, args = LARGE[name]
    assert MARK not in lowered(function, args)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "uint8", "bool", "complex64"])
def test_numbers_of_every_kind(dtype):
    def turn(_: Any, carry: Any) -> Any:
        vector, matrix = carry
        product = (vector @ matrix).astype(dtype)
        return jnp.where(jnp.abs(product) < 3, product, vector), matrix

    def looped(vector: Any, matrix: Any) -> Any:
        return jax.lax.fori_loop(0, 4, turn, (vector, matrix))[0]

    args = jnp.asarray(floats(6) * 2).astype(dtype), jnp.asarray(floats(6, 6)).astype(dtype)
    assert MARK in lowered(looped, args)
    plain, fast = (np.asarray(compiled(looped, *args, fast=fast)) for fast in (False, True))
    assert plain.dtype == fast.dtype
    np.testing.assert_allclose(fast.astype("complex64"), plain.astype("complex64"), rtol=2e-2, atol=2e-2)


def test_loops_in_loops():
    def inner(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)

    def outer(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, x: inner(x * 7), x)

    assert MARK in lowered(outer, (np.ones(5, "float32"),))
    plain, fast = (compiled(outer, np.ones(5, "float32"), fast=fast) for fast in (False, True))
    np.testing.assert_allclose(fast, plain, rtol=2e-6)


def test_gradients_go_through_a_small_loop():
    def total(x: Any) -> Any:
        return jax.lax.fori_loop(0, 5, lambda _, x: jnp.sin(x) * 1.5, x).sum()

    plain, fast = (compiled(jax.grad(total), floats(7), fast=fast) for fast in (False, True))
    np.testing.assert_allclose(fast, plain, rtol=2e-6, atol=2e-6)
