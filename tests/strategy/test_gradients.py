from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError, SettingError
from anytpu.strategy import SummedGradient

SUMMED = (
    "this gradient is already summed over the replicas, so arithmetic on it would be ambiguous: change all of them "
    "with jax.tree.map(fn, gradients), or ask for this replica's own gradients with "
    "tpu.value_and_grad(loss_fn, variables, local=True)"
)


@pytest.mark.parametrize(
    "use",
    [
        lambda g: g * 2,
        lambda g: 2 - g,
        lambda g: -g,
        lambda g: g**2,
        lambda g: g[0],
        lambda g: jnp.square(g),
        lambda g: jnp.ones(3) + g,
        lambda g: np.asarray(g),
        lambda g: keras.ops.clip(g, 0, 1),
    ],
)
def test_arithmetic_on_a_summed_gradient(strategy, use):
    weight = keras.Variable(np.ones(3, "float32"))

    def step():
        _, (gradient,) = tpu.value_and_grad(lambda: (weight * weight).sum(), [weight])()
        return use(gradient)

    with pytest.raises(ReplicaError) as caught:
        strategy.run(step)
    assert str(caught.value) == SUMMED


def test_outside_a_replica_gradients_are_plain():
    weight = keras.Variable(3.0)
    for strategy in (None, tpu.get_strategy()):
        differentiate = tpu.value_and_grad(lambda x, *, scale: weight * weight * x * scale, [weight])
        call = differentiate if strategy is None else lambda *a, d=differentiate, **k: tpu.get_strategy().run(d, a, k)
        loss, (gradient,) = call(2.0, scale=2.0)
        assert (float(loss), float(gradient)) == (36.0, 24.0)
        assert not isinstance(gradient, SummedGradient)


def test_arguments_of_the_loss_stay_what_they_are(strategy):
    weight = keras.Variable(3.0)

    def loss_fn(x, training, *, name):
        assert (training, name) == (True, "loss")
        return (weight * x).sum(), {"doubled": x * 2}

    def step(x):
        differentiate = tpu.value_and_grad(loss_fn, [weight], has_aux=True)
        (loss, aux), (gradient,) = differentiate(x, True, name="loss")
        return loss, aux, gradient

    loss, aux, gradient = strategy.run(step, args=(tpu.PerReplica([1.0, 2.0]),))
    assert loss.values == (3.0, 6.0)
    assert aux["doubled"].values == (2.0, 4.0)
    assert gradient.array.values == (3.0, 3.0)


@pytest.mark.parametrize("local", [False, True])
def test_what_the_loss_writes_is_kept(strategy, local):
    weight = keras.Variable(3.0)
    with strategy.scope():
        seen = keras.metrics.Sum()

    def loss_fn(x):
        seen.update_state(x)
        return weight * x

    strategy.run(lambda x: tpu.value_and_grad(loss_fn, [weight], local=local)(x)[0], args=(tpu.PerReplica([1.0, 2.0]),))
    assert float(seen.result()) == 3.0
    tpu.value_and_grad(loss_fn, [weight])(4.0)
    assert float(seen.result()) == 7.0


def test_the_loss_is_one_number(strategy):
    weight = keras.Variable(np.ones(3, "float32"))
    with pytest.raises(ReplicaError) as caught:
        strategy.run(lambda: tpu.value_and_grad(lambda: weight * 2, [weight])())
    assert str(caught.value) == (
        "loss_fn must return one number, and it returned an array of shape (3,): take "
        "tpu.compute_average_loss(losses, global_batch_size=...) or keras.ops.mean(losses)"
    )


@pytest.mark.parametrize("bad", [3, [], ["kernel"], None])
def test_variables_are_a_list_of_keras_variables(bad):
    with pytest.raises(SettingError) as caught:
        tpu.value_and_grad(lambda: 0.0, bad)
    assert str(caught.value) == (
        f"variables must be a list of Keras variables, such as model.trainable_variables, not {bad!r}"
    )
