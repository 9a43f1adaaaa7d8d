"""Assignments in a replica: errors in functions that JAX traces by itself, and aggregation."""

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


ONE_AND_TWO = tpu.PerReplica([1.0, 2.0])


def test_eight_replicas_add_their_numbers_once():
    eight = tpu.connect("virtual", cores=8)
    numbers = tpu.PerReplica([float(number) for number in range(1, 9)])
    made = {name: keras.Variable(0.0, aggregation=name) for name in ("sum", "mean", "only_first_replica")}
    eight.run(lambda x: [v.assign_add(x) for v in made.values()], args=(numbers,))
    assert {name: float(v) for name, v in made.items()} == {"sum": 36.0, "mean": 4.5, "only_first_replica": 1.0}


@pytest.mark.parametrize(("aggregation", "value"), [("sum", 3.0), ("mean", 1.5), ("only_first_replica", 1.0)])
def test_assigned_without_being_read(strategy, aggregation, value):
    variable = keras.Variable(5.0, aggregation=aggregation)
    strategy.run(variable.assign, args=(ONE_AND_TWO,))
    assert float(variable) == value


def test_whole_numbers(strategy):
    made = {name: keras.Variable(4, dtype="int32", aggregation=name) for name in ("sum", "only_first_replica")}
    strategy.run(lambda x: [v.assign_add(x) for v in made.values()], args=(tpu.PerReplica([1, 2]),))
    assert {name: int(v) for name, v in made.items()} == {"sum": 7, "only_first_replica": 5}
    mean = keras.Variable(4, dtype="int32", aggregation="mean", name="level")
    with pytest.raises(ReplicaError) as caught:
        strategy.run(mean.assign_add, args=(tpu.PerReplica([1, 2]),))
    assert str(caught.value) == (
        "the variable 'level' holds int32, and its aggregation is the mean, which is not an integer: make it with a "
        'floating dtype, or with aggregation="sum" or "only_first_replica"'
    )


def test_without_aggregation(strategy):
    variable = keras.Variable(0.0, name="level")
    with pytest.raises(ReplicaError) as caught:
        strategy.run(variable.assign_add, args=(ONE_AND_TWO,))
    assert str(caught.value) == (
        "you must specify an aggregation method to update the variable 'level' in a replica: its new value differs "
        "between "
        'the replicas, and after a step every replica must hold the same. Make it with aggregation="sum", "mean" or '
        '"only_first_replica", for example keras.Variable(0.0, aggregation="sum"), or write a value that is the same '
        "on all of them. Where an optimizer writes it, from gradients of one replica alone, take them with "
        "tpu.value_and_grad, or reduce them first: "
        'gradients = tpu.get_replica_context().all_reduce("MEAN", gradients)'
    )
    assert float(variable) == 0.0
    strategy.run(variable.assign_add, args=(2.0,))
    assert float(variable) == 2.0


def test_one_value_for_all_is_no_sum(strategy):
    """Python and NumPy values, arrays made outside, and arguments that go to all: each is one value for all."""
    level = keras.Variable(1.0, aggregation="sum", name="level")
    outer = np.float32(2.0)
    calls = {
        "3.0": lambda: strategy.run(lambda: level.assign(3.0)),
        "np.float32(2.0)": lambda: strategy.run(lambda: level.assign_sub(outer)),
        "an argument that goes to all replicas": lambda: strategy.run(level.assign_add, args=(2.0,)),
    }
    for what, call in calls.items():
        with pytest.raises(ReplicaError) as caught:
            call()
        assert str(caught.value) == (
            f"the variable 'level' has aggregation=\"sum\" and was assigned {what}, one value for all 2 "
            "replicas: whether it counts once or 2 times is ambiguous. Assign a value that each replica computes, such "
            "as jnp.sum(x), "
            'assign the value outside of strategy.run, or make the variable with aggregation="mean", which takes it '
            "once"
        )
    strategy.run(lambda: level.assign(0.0))
    assert float(level) == 0.0


def test_assigned_in_a_loss_and_in_a_loop(strategy):
    made = {name: keras.Variable(1.0, aggregation=name) for name in ("sum", "mean", "only_first_replica")}
    weight = keras.Variable(1.0)

    def step(x):
        def loss_fn():
            for variable in made.values():
                variable.assign_add(x)
            return weight * made["sum"]

        def turn(total):
            made["mean"].assign_add(x)
            return [total + made["mean"]]

        loss, _ = tpu.value_and_grad(loss_fn, [weight])()
        tpu.repeat(2, turn, [0.0])
        return loss, [variable.value for variable in made.values()]

    loss, read = strategy.run(step, args=(ONE_AND_TWO,))
    assert [float(value) for value in loss.values] == [4.0, 4.0]
    assert [[float(value) for value in variable.values] for variable in read] == [[4.0] * 2, [5.5] * 2, [2.0] * 2]
    assert [float(variable) for variable in made.values()] == [4.0, 5.5, 2.0]


def test_an_optimizer_writes_what_it_computed(strategy):
    """Its gradients are reduced already: a weight with an aggregation is not summed again."""
    weight, optimizer = keras.Variable(1.0, aggregation="sum"), keras.optimizers.SGD(1.0)
    optimizer.build([weight])
    strategy.run(lambda x: optimizer.apply_gradients([(x, weight)]), args=(ONE_AND_TWO,))
    assert float(weight) == -2.0
