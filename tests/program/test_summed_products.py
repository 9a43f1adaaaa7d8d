"""Sums over the replicas of gradients: equal to the trace as it was, and computed by one product."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr, check_jaxpr, jaxpr_as_fun

from anytpu.program import summed_products
from anytpu.program.program import REPLICA_AXIS
from anytpu.program.summed_products import sums_over_replicas, with_summed_products

REPLICAS, ROWS = 3, 4


@pytest.fixture(autouse=True)
def small_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the small gradients of these tests count as large."""
    monkeypatch.setattr(summed_products, "MIN_SIZE", 60)


def normal(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


def dense(params: Any, x: Any) -> Any:
    return (jax.nn.relu(x @ params["kernel"]) ** 2).mean()


def tied(params: Any, x: Any) -> Any:
    return ((jnp.tanh(x @ params["kernel"]) @ params["kernel"].T - x) ** 2).mean()


def heads(params: Any, x: Any) -> Any:
    parted = jnp.einsum("bf,fhd->bhd", x, params["kernel"].reshape(12, 2, 3))
    return (jnp.einsum("bhd,bhe->bde", parted, parted) ** 2).mean()


def half(params: Any, x: Any) -> Any:
    half = jnp.bfloat16
    return ((x.astype(half) @ params["kernel"].astype(half)).astype("float32") ** 2).sum()


def strided(params: Any, x: Any) -> Any:
    image, numbers = x.reshape(-1, 2, 3, 2), ("NHWC", "HWIO", "NHWC")
    kernel = params["kernel"].reshape(2, 3, 2, 6)
    return (lax.conv_general_dilated(image, kernel, (2, 1), "SAME", dimension_numbers=numbers) ** 2).mean()


def of_one_axis(params: Any, x: Any) -> Any:
    signal, numbers = x.reshape(-1, 3, 4), ("NCH", "OIH", "NCH")
    kernel = params["kernel"].reshape(8, 3, 3)
    out = lax.conv_general_dilated(signal, kernel, (1,), [(2, 1)], rhs_dilation=(2,), dimension_numbers=numbers)
    return (out**2).mean()


def compiled_inside(params: Any, x: Any) -> Any:
    return jax.jit(dense)(params, x)


def reduced_twice(params: Any, x: Any) -> Any:
    return dense(params, x) + 2 * dense(params, -x)


def ids_of(x: Any, classes: int) -> Any:
    return (jnp.abs(x[:, :5]) * 100).astype("int32") % classes


def embedded(params: Any, x: Any) -> Any:
    return (params["kernel"][ids_of(x, 12)].mean(1) ** 2).mean()


def embedded_columns(params: Any, x: Any) -> Any:
    return (jnp.take(params["kernel"], ids_of(x, 6), axis=1) ** 2).mean()


def embedded_cells(params: Any, x: Any) -> Any:
    return (params["kernel"][ids_of(x, 12), ids_of(x, 6)] ** 3).sum()


def embedded_by_row(params: Any, x: Any) -> Any:
    return jax.vmap(lambda ids: (params["kernel"][ids] ** 2).sum())(ids_of(x, 12)).mean()


def embedded_same_ids(params: Any, x: Any) -> Any:
    return (params["kernel"][jnp.arange(4) * 5 % 12 // 4] * x[:, :6]).mean()


def embedded_and_tied(params: Any, x: Any) -> Any:
    return ((params["kernel"][ids_of(x, 12)].mean(1) @ params["kernel"].T - x) ** 2).mean()


def embedded_half(params: Any, x: Any) -> Any:
    return (params["kernel"].astype(jnp.bfloat16)[ids_of(x, 12)].astype("float32") ** 2).mean()


LOSSES = (
    *(dense, tied, heads, half, strided, of_one_axis, compiled_inside, reduced_twice),
    *(embedded, embedded_columns, embedded_cells, embedded_by_row, embedded_same_ids, embedded_and_tied, embedded_half),
)


def traced(step: Callable, params: Any, x: Any) -> ClosedJaxpr:
    over = jax.vmap(step, in_axes=(None, 0), out_axes=(None, 0), axis_name=REPLICA_AXIS)
    return jax.make_jaxpr(over)(params, x)


def summed_sizes(closed: ClosedJaxpr) -> list[int]:
    """Return the sizes of the arrays, of one replica, that a trace sums over the replicas."""
    sums = sums_over_replicas(closed.jaxpr)
    arrays: list[Any] = [operand.aval for equation in sums for operand in equation.invars]
    return [math.prod(array.shape) // REPLICAS for array in arrays]


def both(step: Callable, params: Any, x: Any) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Return the trace of a step and what it is rewritten to, after both were compared."""
    before = traced(step, params, x)
    after = with_summed_products(before)
    check_jaxpr(after.jaxpr)
    leaves = jax.tree.leaves((params, x))
    for mine, theirs in zip(jaxpr_as_fun(after)(*leaves), jaxpr_as_fun(before)(*leaves), strict=True):
        # The order of the additions differs: a few rounding steps of float32, of bfloat16 where it multiplies.
        tolerance = 1e-2 if "bf16" in str(before) else 2e-6
        assert np.max(np.abs(mine - theirs)) <= tolerance * np.max(np.abs(theirs))
    return before, after


@pytest.mark.parametrize("reduce", [lax.psum, lax.pmean], ids=["psum", "pmean"])
@pytest.mark.parametrize("is_compiled", [False, True], ids=["traced", "jitted"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_the_gradient_of_a_shared_weight_is_one_product(loss, is_compiled, reduce):
    params = {"kernel": normal(12, 6), "unused": normal(2)}
    gradients_of = jax.value_and_grad(loss)
    gradients_of = jax.jit(gradients_of) if is_compiled else gradients_of

    def step(params: Any, x: Any) -> Any:
        value, gradients = gradients_of(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, reduce(gradients, REPLICA_AXIS)), value

    before, after = both(step, params, normal(REPLICAS, ROWS, 12, seed=1))
    assert 72 in summed_sizes(before)
    assert 72 not in summed_sizes(after)


def test_a_sum_that_no_product_makes_stays():
    def step(params: Any, x: Any) -> Any:
        gradient = jax.grad(lambda params: (params["kernel"] * x.sum()).sum())(params)
        return lax.psum(gradient, REPLICA_AXIS), lax.psum(x, REPLICA_AXIS)

    before, after = both(step, {"kernel": normal(12, 6)}, normal(REPLICAS, ROWS, 12))
    assert summed_sizes(after) == summed_sizes(before)


def test_a_product_whose_rows_are_no_replicas_stays():
    def step(params: Any, x: Any) -> Any:
        return lax.psum(x @ params["kernel"], REPLICA_AXIS), x

    before, after = both(step, {"kernel": normal(12, 6)}, normal(REPLICAS, ROWS, 12))
    assert summed_sizes(after) == summed_sizes(before) == [ROWS * 6]


def test_a_gradient_that_is_used_itself_is_made_too():
    def step(params: Any, x: Any) -> Any:
        gradient = jax.grad(dense)(params, x)["kernel"]
        return lax.psum(gradient, REPLICA_AXIS), (gradient**2).sum()

    both(step, {"kernel": normal(12, 6)}, normal(REPLICAS, ROWS, 12))


def test_a_trace_without_sums_is_the_same_object():
    closed = jax.make_jaxpr(lambda x: x @ x)(normal(3, 3))
    assert with_summed_products(closed).jaxpr is closed.jaxpr


def test_a_small_gradient_stays(monkeypatch):
    monkeypatch.setattr(summed_products, "MIN_SIZE", 73)

    def step(params: Any, x: Any) -> Any:
        return lax.psum(jax.grad(dense)(params, x), REPLICA_AXIS), x

    before, after = both(step, {"kernel": normal(12, 6)}, normal(REPLICAS, ROWS, 12))
    assert summed_sizes(after) == summed_sizes(before) == [72]
