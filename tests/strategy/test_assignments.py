"""Assignments inside of functions that JAX traces by itself: refused, and the error says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError

X = np.arange(8, dtype="float32").reshape(4, 2)

INSIDE = (
    "the variable 'weight' is assigned inside a function that JAX traces by itself, such as the body of jax.lax.scan "
    "or a branch of jax.lax.cond: the value cannot leave that function. Return the value from it, and assign it "
    "outside. Or use tpu.repeat or tpu.while_loop for a loop that assigns, "
    "variable.assign(jnp.where(condition, new, variable.value)) for a branch, and tpu.value_and_grad for gradients"
)


def scan(write: Callable, x: Any) -> Any:
    return jax.lax.scan(lambda carry, row: (carry, write(row)), 0.0, x)


def cond(write: Callable, x: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda: write(x[0]), lambda: 0.0)


def fori_loop(write: Callable, x: Any) -> Any:
    return jax.lax.fori_loop(0, 4, lambda index, total: total + write(x[index]), 0.0)


def while_loop(write: Callable, x: Any) -> Any:
    return jax.lax.while_loop(lambda total: total < 3, lambda total: total + write(x[0]), 0.0)


def vmap(write: Callable, x: Any) -> Any:
    return jax.vmap(write)(x)


def grad(write: Callable, x: Any) -> Any:
    return jax.grad(lambda row: write(row))(x[0])


def jit(write: Callable, x: Any) -> Any:
    return jax.jit(write)(x[0])


def checkpoint(write: Callable, x: Any) -> Any:
    return jax.checkpoint(write)(x[0])


@pytest.mark.parametrize("aggregation", ["none", "mean"])
@pytest.mark.parametrize("inside", [scan, cond, fori_loop, while_loop, vmap, grad, jit, checkpoint])
def test_inside_of_a_function_that_jax_traces(strategy, inside: Callable, aggregation: str):
    weight = keras.Variable(np.zeros(2, "float32"), aggregation=aggregation, name="weight")

    def write(row: Any) -> Any:
        weight.assign(row)
        return row.sum()

    for _ in range(2):
        with pytest.raises(ReplicaError) as caught:
            strategy.run(lambda x: inside(write, x), (X,))
        assert str(caught.value) == INSIDE
    strategy.run(lambda x: weight.assign(x[0] * 2), (X,))
    assert np.asarray(weight).tolist() == [0.0, 2.0]


def test_a_constant_in_a_branch_that_is_not_taken(strategy):
    weight = keras.Variable(np.zeros(2, "float32"), name="weight")

    def step(x: Any) -> Any:
        jax.lax.cond(x.sum() < 0, lambda: weight.assign(np.ones(2, "float32")), lambda: jnp.zeros(2))

    with pytest.raises(ReplicaError) as caught:
        strategy.run(step, (X,))
    assert str(caught.value) == INSIDE


def test_what_the_error_proposes(strategy):
    weight = keras.Variable(np.zeros(2, "float32"), aggregation="only_first_replica")

    def add(x: Any) -> Any:
        weight.assign_add(x[1])
        return x

    def step(x: Any) -> None:
        tpu.repeat(3, add, [x])
        weight.assign(jnp.where(x.sum() > 0, weight + x[0], weight.value))

    strategy.run(step, (X,))
    assert np.asarray(weight).tolist() == [6.0, 10.0]
