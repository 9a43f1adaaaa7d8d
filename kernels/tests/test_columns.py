"""Column sums against float64's: sizes, offsets far from zero, groups under `vmap`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("anytpu_kernels", reason="the kernels are not installed: scripts/venv builds them where g++ is")
from anytpu_kernels import column_moments, column_products

EPSILON = float(np.finfo("float32").eps)
SIZES = [(1, 1), (2, 3), (5, 64), (129, 1), (1000, 3), (4099, 16), (70001, 5), (131072, 16), (600, 2048), (31, 70)]


def arrays(rows, columns, offset):
    random = np.random.default_rng(0)
    shape, scales = (rows, columns), 10 ** random.uniform(-2, 2, columns)
    x = (random.normal(size=shape) * scales + offset * scales).astype("float32")
    return random.normal(size=shape).astype("float32"), x


@pytest.mark.parametrize("offset", [0, 100])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_moments(sizes, offset):
    _, x = arrays(*sizes, offset)
    exact = x.astype("float64")
    mean, variance = map(np.asarray, jax.jit(column_moments)(x))
    assert (np.abs(mean - exact.mean(0)) <= 2 * EPSILON * np.abs(exact).mean(0)).all()
    np.testing.assert_allclose(variance, exact.var(0), rtol=8 * EPSILON)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products(sizes):
    gradient, x = arrays(*sizes, 3)
    center = x.astype("float64").mean(0)
    sums, products = map(np.asarray, jax.jit(column_products)(gradient, x, center.astype("float32")))
    exact = gradient.astype("float64") * (x - center.astype("float32").astype("float64"))
    for made, terms in ((sums, gradient.astype("float64")), (products, exact)):
        assert (np.abs(made - terms.sum(0)) <= 8 * EPSILON * np.abs(terms).sum(0)).all()


def test_each_matrix_of_a_batch_is_computed_separately():
    gradient, x = (array.reshape(4, 1000, 24) for array in arrays(4000, 24, 1))
    center = x.mean(1)
    made = *jax.vmap(column_moments)(x), *jax.vmap(column_products)(gradient, x, center)
    for i in range(4):
        alone = *column_moments(x[i]), *column_products(gradient[i], x[i], center[i])
        for together, single in zip(made, alone, strict=True):
            np.testing.assert_array_equal(together[i], single)


def test_infinite_and_undefined_numbers_are_not_hidden():
    x = np.ones((300, 4), "float32")
    x[7, 1], x[8, 2] = np.inf, np.nan
    mean, variance = map(np.asarray, jax.jit(column_moments)(x))
    assert np.isfinite(mean).tolist() == [True, False, False, True]
    assert np.isfinite(variance).tolist() == [True, False, False, True]
    assert np.isnan(column_products(x, x, jnp.zeros(4))[1]).tolist() == [False, False, True, False]
