"""Products rounded as on a TPU: against arithmetic written out in bfloat16, and wherever in a step they may be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax
from jax.extend.core import check_jaxpr
from jax.sharding import Mesh, PartitionSpec

from anytpu.engine.kernels import fast_kernels
from anytpu.engine.numerics import apply_numerics, round_products
from anytpu.engine.virtual import VirtualBackend
from anytpu.program import REPLICATED, ROWS, of
from anytpu.system.topologies import row_of_cores

CONVOLUTION = {"window_strides": (2, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32") / 4


def half(array: Any) -> Any:
    return array.astype(jnp.bfloat16)


def product(left: Any, right: Any) -> Any:
    """What a matrix unit does: bfloat16 in, float32 out."""
    return jnp.dot(half(left), half(right), preferred_element_type=jnp.float32)


def count(function: Callable, *given: Any) -> tuple[int, int]:
    """Return how many products a function has when it is rounded, and how many operands are rounded."""
    text = str(closed := round_products(jax.make_jaxpr(function)(*given)))
    check_jaxpr(closed.jaxpr)
    products = sum(text.count(f"{name}[") for name in ("dot_general", "conv_general_dilated"))
    return products, text.count("reduce_precision[")


def test_a_training_step_forward_and_backward():
    def step(state: Any, batch: Any) -> Any:
        outputs, back = jax.vjp(lambda w: jnp.tanh(batch @ w), state)
        return state - 0.1 * back(jnp.ones_like(outputs))[0], outputs

    w, x = normal(32, 8, seed=1), normal(16, 32)
    state, outputs = jax.jit(apply_numerics("tpu", step))(w, x)
    expected = jnp.tanh(product(x, w))
    slope = product(x.T, 1 - expected**2)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state, w - 0.1 * slope, rtol=1e-5, atol=1e-6)
    exact_state, exact_outputs = step(w, x)
    assert np.max(np.abs(outputs - exact_outputs)) > 1e-4
    assert np.max(np.abs(state - exact_state)) > 1e-4


@pytest.mark.parametrize("kernels", [contextlib.nullcontext, fast_kernels])
def test_convolutions_and_both_their_gradients(kernels: Callable):
    def convolution(image: Any, kernel: Any, convolve: Callable = lax.conv_general_dilated) -> Any:
        return convolve(image, kernel, **CONVOLUTION)

    def step(state: Any, batch: Any) -> Any:
        outputs, back = jax.vjp(convolution, batch, state)
        return state, (outputs, back(jnp.sin(outputs)))

    image, kernel = normal(2, 6, 5, 3), normal(3, 3, 3, 4, seed=1)
    with kernels():
        outputs, (image_slope, kernel_slope) = (
            jax.jit(apply_numerics("tpu", step)).lower(kernel, image).compile()(kernel, image)[1]
        )
    wide = [np.asarray(half(array), "float32") for array in (image, kernel)]
    expected, back = jax.vjp(convolution, *wide)
    # The slope of the outputs is an operand of both gradients, so it is rounded too.
    slopes = back(np.asarray(half(jnp.sin(outputs)), "float32"))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(image_slope, slopes[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(kernel_slope, slopes[1], rtol=1e-5, atol=1e-5)
    assert np.max(np.abs(outputs - convolution(image, kernel))) > 1e-3


def test_an_lstm_is_that_of_keras():
    """The CPU's own has the bias in its products, where it would be rounded."""
    layer = keras.layers.LSTM(6, return_sequences=True)
    x = normal(3, 7, 5)
    layer.build(x.shape)
    weights = [np.asarray(variable.value) + 0.01 for variable in layer.trainable_variables]
    others = [np.asarray(variable.value) for variable in layer.non_trainable_variables]

    def step(state: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            outputs, _ = layer.stateless_call(weights, others, batch)
            return jnp.sum(jnp.sin(3 * outputs))

        return state, jax.grad(loss)(state)

    program = of(step, (weights, x))
    backend = VirtualBackend(row_of_cores(2).cores, numerics="tpu")
    _, found = backend.compile(program).step(backend.put(weights, REPLICATED), backend.put(x, ROWS))
    for result, expected, exact in zip(
        found, jax.jit(apply_numerics("tpu", step))(weights, x)[1], step(weights, x)[1], strict=True
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        assert np.max(np.abs(expected - exact)) > 1e-4


def test_half_way_goes_to_the_even_neighbour():
    step = jax.jit(apply_numerics("tpu", lambda state, batch: (state, jnp.eye(1) @ batch)))
    for given, expected in ((1 + 2**-8, 1), (1 + 3 * 2**-8, 1 + 2**-6), (1 + 2**-8 + 2**-20, 1 + 2**-7)):
        assert float(step((), jnp.full((1, 1), given, "float32"))[1][0, 0]) == expected
    for given in (np.inf, -np.inf, np.nan):
        np.testing.assert_equal(np.asarray(step((), jnp.full((1, 1), given, "float32"))[1]), np.full((1, 1), given))


def test_a_difference_of_near_values_is_lost_as_on_a_tpu():
    step = apply_numerics("tpu", lambda state, batch: (state, batch @ jnp.array([[1.0], [-1.0]])))
    near = jnp.array([[1.001, 1.0]])
    assert float(step((), near)[1][0, 0]) == 0
    assert float((near @ jnp.array([[1.0], [-1.0]]))[0, 0]) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("precision", [None, "default", lax.DotAlgorithmPreset.DEFAULT])
def test_who_leaves_the_choice_gets_what_a_tpu_chooses(precision: Any):
    x = normal(8, 8)
    assert count(lambda x: jnp.matmul(x, x, precision=precision), x) == (1, 1)


@pytest.mark.parametrize("precision", ["high", "highest", lax.DotAlgorithmPreset.F32_F32_F32])
def test_who_asks_for_more_gets_it(precision: Any):
    x = jnp.ones((4, 4))
    assert count(lambda x: jnp.matmul(x, x, precision=precision), x) == (1, 0)


def test_who_asks_for_more_everywhere_gets_it():
    with jax.default_matmul_precision("highest"):
        assert count(lambda x: x @ (x + 1), jnp.ones((4, 4))) == (1, 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64", "int8"])
def test_other_types_stay_as_they_are(dtype: str):
    assert count(lambda x: x @ x, jnp.ones((4, 4), dtype)) == (1, 0)


def test_64_bits_stay_as_they_are():
    with jax.enable_x64(True):
        assert count(lambda x: x @ x, jnp.ones((4, 4), "float64")) == (1, 0)


def test_of_two_types_only_float32_is_rounded():
    left, right = jnp.ones((4, 4)), jnp.ones((4, 4), "bfloat16")
    both = {"dimension_numbers": (((1,), (0,)), ((), ())), "preferred_element_type": jnp.float32}
    assert count(lambda left, right: lax.dot_general(left, right, **both), left, right) == (1, 1)


def test_an_operand_of_two_products_is_rounded_once():
    assert count(lambda x: (x @ x.T, x @ x.T), jnp.ones((4, 4))) == (2, 3)


def test_ragged_products():
    given = normal(6, 4), normal(2, 4, 3, seed=1), jnp.array([2, 4])
    outputs = apply_numerics("tpu", lambda state, batch: (state, lax.ragged_dot(*batch)))((), given)[1]
    expected = jnp.concatenate([product(given[0][:2], given[1][0]), product(given[0][2:], given[1][1])])
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)


def _custom_jvp(x: Any) -> Any:
    function = jax.custom_jvp(lambda x: x @ x)
    function.defjvp(lambda x, dx: (x[0] @ x[0], dx[0]))
    return function(x)


def _custom_vmap(x: Any) -> Any:
    function = jax.custom_batching.custom_vmap(lambda x: x @ x)
    function.def_vmap(lambda axis_size, in_batched, x: (x, in_batched[0]))
    return function(x)


def _custom_vjp(x: Any) -> Any:
    function = jax.custom_vjp(lambda x: x @ x)
    function.defvjp(lambda x: (x @ x, x), lambda x, slope: (slope @ x,))
    return function(x)


def _sharded(x: Any) -> Any:
    mesh, whole = Mesh(np.array(jax.devices()[:1]), ("replica",)), PartitionSpec()
    return jax.shard_map(lambda x: x @ x, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)(x)


INSIDE: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit(lambda x: x @ x),
    "scan": lambda x: lax.scan(lambda y, _: (y @ x, None), x, None, length=2)[0],
    "while": lambda x: lax.while_loop(lambda y: jnp.sum(y) < 9, lambda y: y @ x, x),
    "cond": lambda x: lax.cond(jnp.sum(x) > 0, lambda y: y @ x, lambda y: y, x),
    "map": lambda x: lax.map(lambda row: row[None] @ x, x),
    "checkpoint": jax.checkpoint(lambda x: x @ x),
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "shard_map": _sharded,
    "custom_vmap": _custom_vmap,
}


@pytest.mark.parametrize("name", INSIDE)
def test_however_deep(name: str):
    x = jnp.eye(3) + normal(3, 3) / 8
    products, operands = count(INSIDE[name], x)
    assert products == 1
    assert operands in (1, 2)
    outputs = apply_numerics("tpu", lambda state, batch: (state, INSIDE[name](batch)))((), x)[1]
    assert outputs.shape[-1] == 3
    assert float(jnp.max(jnp.abs(outputs - INSIDE[name](x)))) > 0


def test_linear_algebra_is_exact_as_on_a_tpu():
    matrix, right = jnp.eye(5) + normal(5, 5) / 8, normal(5, 2, seed=1)
    for function in (jnp.linalg.solve, lambda m, r: jnp.linalg.cholesky(m @ m.T, symmetrize_input=False) + r[:, :1]):
        outputs = apply_numerics("tpu", lambda state, batch, f=function: (state, f(*batch)))((), (matrix, right))[1]
        assert outputs.dtype == jnp.float32
    np.testing.assert_array_equal(
        apply_numerics("tpu", lambda state, batch: (state, jnp.linalg.solve(*batch)))((), (matrix, right))[1],
        jnp.linalg.solve(matrix, right),
    )


def test_inside_of_a_linear_solve():
    matrix, right = jnp.eye(5) + normal(5, 5) / 8, normal(5, seed=1)

    def solved(matrix: Any, right: Any) -> Any:
        return jax.scipy.sparse.linalg.cg(lambda v: matrix.T @ (matrix @ v), right)[0]

    products, operands = count(solved, matrix, right)
    assert products and operands
    outputs = apply_numerics("tpu", lambda state, batch: (state, solved(*batch)))((), (matrix, right))[1]
    assert 0 < float(jnp.max(jnp.abs(outputs - solved(matrix, right)))) < 0.1


def test_a_function_that_is_called_twice_stays_one():
    inner = jax.jit(lambda x: x @ x)
    closed = round_products(jax.make_jaxpr(lambda x: inner(inner(x)))(jnp.ones((4, 4))))
    first, second = (equation.params["jaxpr"] for equation in closed.eqns)
    assert first is second
