import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from anytpu.engine.pooling import takes_pool_gradient
from engine.kernel_switch import compiled

CASES = [
    ((2, 6, 6, 3), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    ((2, 7, 9, 3), (1, 2, 3, 1), (1, 2, 3, 1), "VALID"),
    ((2, 7, 7, 3), (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    ((2, 8, 7, 3), (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
    ((1, 11, 12, 2), (1, 5, 2, 1), (1, 2, 4, 1), "VALID"),
    ((2, 3, 9, 9), (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (2, 0)]),
    ((3, 10, 2), (1, 3, 1), (1, 2, 1), "SAME"),
    ((1, 5, 6, 7, 2), (1, 2, 2, 2, 1), (1, 2, 2, 2, 1), "SAME"),
    ((9,), (4,), (3,), [(2, 3)]),
]


def training(window, strides, padding):
    """Return a function that pools and pulls a gradient back to the image."""

    def train(image, weights):
        y, pull = jax.vjp(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding), image)
        return y, *pull(jnp.resize(weights, y.shape))

    return train


def images(shape, dtype="float32"):
    """Return an image with many equal maxima, and weights of as many values."""
    random = np.random.default_rng(0)
    return jnp.asarray(random.integers(-3, 3, shape), dtype), jnp.asarray(random.normal(size=shape), dtype)


def gradient_equations(function, *args):
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return [e for e in jaxpr.eqns if e.primitive is lax.select_and_scatter_add_p]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_first_of_equal_maxima_gets_the_gradient(case, dtype):
    shape, *pooling = case
    with jax.enable_x64(True):
        image, weights = images(shape, dtype)
        for number in (2, -jnp.inf, jnp.nan):
            image = jnp.where(image == 2, number, image)
            got, want = (compiled(training(*pooling), image, weights, fast=fast) for fast in (True, False))
            for ours, own in zip(got, want, strict=True):
                assert (ours.shape, ours.dtype) == (own.shape, own.dtype)
                np.testing.assert_allclose(ours, own, rtol=1e-6, atol=1e-6)


def test_padding_wins_over_a_later_infinity_as_in_xla():
    image, weights = images((1, 5, 5, 1))
    image = jnp.full_like(image, -jnp.inf)
    pooling = (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
    got, want = (compiled(training(*pooling), image, weights, fast=fast) for fast in (True, False))
    np.testing.assert_allclose(got[1], want[1], rtol=1e-6)


def test_replicas():
    shape, *pooling = CASES[2]
    image, weights = images((4, *shape))
    got, want = (compiled(jax.vmap(training(*pooling)), image, weights, fast=fast) for fast in (True, False))
    np.testing.assert_allclose(got[1], want[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("window", "dtype", "expected"),
    [(2, "float32", True), (5, "float32", True), (6, "float32", False), (2, "bfloat16", False)],
)
def test_which_gradients_are_rewritten(window, dtype, expected):
    image, weights = images((1, 12, 12, 1), dtype)
    train = training((1, window, window, 1), (1, window, window, 1), "VALID")
    (equation,) = gradient_equations(train, image, weights)
    assert takes_pool_gradient(*(v.aval for v in equation.invars), equation.params) is expected


def test_gradients_of_minima_are_not():
    image, weights = images((1, 6, 6, 1))

    def train(image, weights):
        y, pull = jax.vjp(lambda x: lax.reduce_window(x, jnp.inf, lax.min, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), image)
        return pull(jnp.resize(weights, y.shape))

    (equation,) = gradient_equations(train, image, weights)
    assert not takes_pool_gradient(*(v.aval for v in equation.invars), equation.params)


def test_an_image_without_rows_is_left_to_xla():
    empty = jax.ShapeDtypeStruct((0, 4, 4, 1), np.dtype("float32"))
    parameters = {"select_prim": lax.ge_p, "window_dimensions": (1, 2, 2, 1)}
    assert not takes_pool_gradient(empty, empty, parameters)
