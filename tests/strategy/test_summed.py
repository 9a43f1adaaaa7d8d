"""Gradients of `tpu.value_and_grad` are used like arrays, and are summed over the replicas exactly once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError

X = np.array([1.0, 2.0, 3.0, 4.0], "float32")
START = np.array([1.0, -2.0], "float32")
GRADIENT = np.array([10.0, 20.0], "float32")
"""The gradient of the loss below, over all rows."""


def loss_of(weight, x):
    return (weight * jnp.array([1.0, 2.0]) * x.sum()).sum()


def trained(strategy, step, steps=1, after=None):
    """Run a step that changes the gradients. Return the weight, which a learning rate of 1 updates."""
    with strategy.scope():
        weight, total = keras.Variable(START), keras.Variable(np.zeros(2, "float32"))
        optimizer = keras.optimizers.SGD(1.0)

    def train(x):
        _, gradients = tpu.value_and_grad(lambda: loss_of(weight, x), [weight])()
        changed = step(gradients, [weight], total)
        if changed is not None:
            optimizer.apply_gradients(zip(changed, [weight], strict=True))

    (batch,) = strategy.distribute_dataset([X])
    for _ in range(steps):
        strategy.run(train, args=(batch,))
    if after is not None:
        strategy.run(lambda: optimizer.apply_gradients([(after(total), weight)]))
    return np.asarray(weight.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda g, w: g / 4, GRADIENT / 4),
        (lambda g, w: 0.5 * g, GRADIENT / 2),
        (lambda g, w: -((g - 1) ** 2), -((GRADIENT - 1) ** 2)),
        (lambda g, w: g + 0.1 * w, GRADIENT + 0.1 * START),
        (lambda g, w: w * 0.1 + g, GRADIENT + 0.1 * START),
        (lambda g, w: np.float32(0.5) * g * np.ones(2, "float32"), GRADIENT / 2),
        (lambda g, w: jnp.clip(g, -1, 15), np.clip(GRADIENT, -1, 15)),
        (lambda g, w: keras.ops.clip(g, -1, 15), np.clip(GRADIENT, -1, 15)),
        (lambda g, w: g / jnp.linalg.norm(g), GRADIENT / np.linalg.norm(GRADIENT)),
        (lambda g, w: g * jnp.minimum(1.0, 1.0 / jnp.sqrt((g**2).sum())), GRADIENT / np.linalg.norm(GRADIENT)),
        (lambda g, w: jnp.where(g > 15, 0.0, g), GRADIENT * [1, 0]),
        (lambda g, w: jnp.stack([g[1], g[0]]), GRADIENT[::-1]),
        (lambda g, w: g.astype("float32").reshape(2), GRADIENT),
        (lambda g, w: jax.jit(lambda g: g * 2)(g), GRADIENT * 2),
        (lambda g, w: tpu.get_replica_context().all_reduce("MEAN", jnp.asarray(g)), GRADIENT),
    ],
)
def test_one_gradient_is_changed_like_any_array(strategy, change, expected):
    step = lambda gradients, weights, _: [change(g, w) for g, w in zip(gradients, weights, strict=True)]  # noqa: E731
    np.testing.assert_allclose(trained(strategy, step), START - expected, rtol=1e-5)


@pytest.mark.parametrize(
    "add",
    [
        lambda total, g: total.assign_add(g),
        lambda total, g: total.assign(total + g),
        lambda total, g: total.assign_add(jnp.clip(g, -99, 99)),
        lambda total, g: total.assign_sub(-g),
    ],
)
@pytest.mark.parametrize("after", [lambda total: total / 2, lambda total: total, lambda total: total.value / 2])
def test_gradients_are_added_up_over_steps(strategy, add, after):
    found = trained(strategy, lambda gradients, _, total: (add(total, gradients[0]), None)[1], 2, after)
    np.testing.assert_allclose(found, START - after(keras.Variable(2 * GRADIENT)), rtol=1e-6)


def test_gradients_are_added_up_and_applied_in_one_step(strategy):
    def step(gradients, _, total):
        total.assign_add(gradients[0])
        return [total / 1]

    np.testing.assert_allclose(trained(strategy, step, 2), START - 3 * GRADIENT, rtol=1e-6)


def test_a_variable_with_an_aggregation_takes_a_summed_gradient_once(strategy):
    with strategy.scope():
        total = keras.Variable(np.zeros(2, "float32"), aggregation="sum")
    trained(strategy, lambda gradients, *_: (total.assign_add(gradients[0]), None)[1])
    np.testing.assert_allclose(total.value, GRADIENT, rtol=1e-6)


def test_sharpness_aware_minimization(strategy):
    with strategy.scope():
        weight, optimizer = keras.Variable(START), keras.optimizers.SGD(0.1)

    def step(x):
        differentiate = tpu.value_and_grad(lambda: ((weight * x.sum()) ** 2).sum() / 100, [weight])
        _, gradients = differentiate()
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradients))
        moves = [0.5 * g / (norm + 1e-12) for g in gradients]
        weight.assign_add(moves[0])
        _, gradients = differentiate()
        weight.assign_sub(moves[0])
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))

    (batch,) = strategy.distribute_dataset([X])
    strategy.run(step, args=(batch,))
    factor = 2 * (3.0**2 + 7.0**2) / 100
    moved = START + 0.5 * START / np.linalg.norm(START)
    np.testing.assert_allclose(weight.value, START - 0.1 * factor * moved, rtol=1e-5)


def test_an_unmarked_gradient_is_summed_as_ever(strategy):
    def step(gradients, weights, _):
        own = jnp.ones(2) * (1.0 + tpu.get_replica_context().replica_id_in_sync_group)
        return [own]

    np.testing.assert_allclose(trained(strategy, step), START - 3)


def test_gradients_reduced_by_hand_are_applied_once_beside_others(strategy):
    def step(gradients, weights, _):
        jnp.linalg.norm(gradients[0])
        return [tpu.get_replica_context().all_reduce("SUM", jnp.ones(2))]

    np.testing.assert_allclose(trained(strategy, step), START - 2)


def test_a_value_of_one_replica_is_not_added_to_a_summed_gradient(strategy):
    with pytest.raises(ReplicaError) as caught:
        trained(
            strategy, lambda gradients, *_: [g + tpu.get_replica_context().replica_id_in_sync_group for g in gradients]
        )
    assert str(caught.value) == (
        "this gradient is already summed over the replicas, and the other operand differs between them, so the result "
        'would be neither: sum the other operand first, tpu.get_replica_context().all_reduce("SUM", value), or ask for '
        "this replica's own gradients with tpu.value_and_grad(loss_fn, variables, local=True)"
    )
    with pytest.raises(ReplicaError) as caught:
        trained(
            strategy, lambda gradients, *_: [jnp.add(gradients[0], tpu.get_replica_context().replica_id_in_sync_group)]
        )
    assert str(caught.value) == (
        "an optimizer was given a gradient that differs between the replicas, in a step that passes gradients of "
        "tpu.value_and_grad, which are already summed, to functions of JAX or Keras: it may hold a summed one, which "
        "would be summed again. Add nothing of one replica to a summed gradient, or ask for this replica's own "
        "gradients with tpu.value_and_grad(loss_fn, variables, local=True)"
    )


@pytest.mark.parametrize("reduction", ["SUM", "MEAN"])
def test_a_summed_gradient_is_not_reduced_again(strategy, reduction):
    with pytest.raises(ReplicaError, match=r"^all_reduce was given gradients of tpu\.value_and_grad, which are summed"):
        trained(strategy, lambda gradients, *_: tpu.get_replica_context().all_reduce(reduction, gradients))


@pytest.mark.parametrize("is_built", [True, False])
def test_loss_scaling_is_that_of_one_device(strategy, is_built):
    """A step with an infinite loss is left out, and halves the scale; two finite steps double it."""

    def run(system):
        weight = keras.Variable(START)
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1), dynamic_growth_steps=2)
        if is_built:
            optimizer.build([weight])

        def step(x, factor):
            loss_fn = lambda: optimizer.scale_loss(loss_of(weight, x) * factor)  # noqa: E731
            _, gradients = tpu.value_and_grad(loss_fn, [weight])()
            optimizer.apply_gradients(zip(gradients, [weight], strict=True))

        (batch,) = system.distribute_dataset([X])
        states = []
        for factor in (1.0, 1.0, np.inf, 1.0):
            system.run(step, args=(batch, np.float32(factor)))
            states.append([float(optimizer.dynamic_scale), int(optimizer.step_counter), int(optimizer.iterations)])
        return np.asarray(weight.value), states

    with strategy.scope():
        found, states = run(strategy)
    expected, right = run(tpu.connect("virtual", cores=1))
    assert states == right == [[32768.0, 1, 1], [65536.0, 0, 2], [32768.0, 0, 2], [32768.0, 1, 3]]
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, START)
