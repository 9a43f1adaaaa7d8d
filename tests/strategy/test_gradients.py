from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from flax import nnx

import anytpu as tpu
from anytpu.errors import ReplicaError, SettingError
from anytpu.strategy import SummedGradient


def test_one_variable_has_one_gradient():
    weight = keras.Variable([1.0, 2.0])
    (loss, aux), gradient = tpu.value_and_grad(lambda x: ((weight * weight).sum() * x, x), weight, has_aux=True)(3.0)
    assert (float(loss), aux) == (15.0, 3.0)
    assert gradient.tolist() == [6.0, 12.0]


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
        "tpu.compute_average_loss(losses) inside strategy.run, or keras.ops.mean(losses) outside of it"
    )


@pytest.mark.parametrize("local", [False, True])
def test_several_losses_of_one_pass(strategy, local):
    weight, bias = keras.Variable(3.0), keras.Variable(1.0)
    dropout = keras.layers.Dropout(0.5, seed=1)
    with strategy.scope():
        seen = keras.metrics.Sum()

    def losses(x):
        mask = dropout(jnp.ones(64), training=True)
        seen.update_state(x)
        return (weight * x + mask.sum(), bias * mask.sum()), mask

    def step(x):
        (both, mask), gradients = tpu.value_and_grad(losses, [[weight], (bias,)], has_aux=True, local=local)(x)
        replica = tpu.get_replica_context()
        return both, mask.sum(), [g if local else replica.all_reduce("MEAN", g.array) for (g,) in gradients]

    both, mask, gradients = strategy.run(step, args=(tpu.PerReplica([1.0, 2.0]),))
    own = [float(value) for value in mask.values]
    assert [float(value) for value in both[0].values] == [3 * x + m for x, m in zip((1.0, 2.0), own, strict=True)]
    assert [float(value) for value in both[1].values] == own
    for gradient, expected in zip(gradients, ([1.0, 2.0], own), strict=True):
        summed = [sum(expected)] * 2
        assert [float(value) for value in gradient.values] == (expected if local else summed)
    assert float(seen.result()) == 3.0


def test_there_is_one_loss_for_each_list_of_variables():
    weight = keras.Variable(3.0)
    for loss, count in ((weight, 1), ((weight, weight, weight), 3)):
        with pytest.raises(ReplicaError) as caught:
            tpu.value_and_grad(lambda loss=loss: loss, [[weight], [weight]])()
        assert str(caught.value) == (
            f"loss_fn must return a tuple of 2 losses, one for each list of variables, and it returned {count}"
        )


@pytest.mark.parametrize("bad", [3, [], ["kernel"], None, {"count": np.arange(3)}, {"weight": keras.Variable(1.0)}])
def test_what_cannot_be_differentiated_by(bad):
    with pytest.raises(SettingError) as caught:
        tpu.value_and_grad(lambda: 0.0, bad)
    assert str(caught.value) == (
        "variables must be a list of Keras variables, such as model.trainable_variables, or a tree with arrays of "
        f"floating-point numbers, such as the parameters of a JAX model, not {bad!r}"
    )


RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)).astype("float32")
Y = RNG.normal(size=(30, 2)).astype("float32")


def squares(prediction, y):
    return ((prediction - y) ** 2).sum(1)


def dense():
    params = {"w": jnp.asarray(RNG.normal(size=(4, 2)), jnp.float32), "b": jnp.ones(2), "steps": 3}
    return params, lambda params, x: x @ params["w"] + params["b"]


def equinox_mlp():
    return eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0)), lambda model, x: jax.vmap(model)(x)


def nnx_state():
    graph, params = nnx.split(nnx.Linear(4, 2, rngs=nnx.Rngs(0)), nnx.Param)
    return params, lambda params, x: nnx.merge(graph, params)(x)


def floats(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]


@pytest.mark.parametrize("make", [dense, equinox_mlp, nnx_state])
@pytest.mark.parametrize("rows", [32, 30], ids=["full", "padded"])
def test_a_tree_of_arrays(strategy, make, rows):
    params, predict = make()

    def loss_fn(params, x, y):
        losses = squares(predict(params, x), y)
        return tpu.compute_average_loss(losses, global_batch_size=rows), losses.mean()

    def step(params, batch):
        (loss, _), gradients = tpu.value_and_grad(loss_fn, params, has_aux=True)(*batch)
        assert jax.tree.structure(gradients) == jax.tree.structure(eqx.filter(params, eqx.is_inexact_array))
        return loss, gradients

    x, y = np.resize(X, (rows, 4)), np.resize(Y, (rows, 2))
    (batch,) = strategy.distribute_dataset([(x, y)])
    loss, gradients = strategy.run(step, args=(params, batch))

    def whole(arrays, others):
        return squares(predict(eqx.combine(arrays, others), x), y).mean()

    expected, expected_gradients = jax.value_and_grad(whole)(*eqx.partition(params, eqx.is_inexact_array))
    np.testing.assert_allclose(sum(np.asarray(loss.values)), expected, rtol=1e-5)
    for found, right in zip(
        jax.tree.leaves(gradients, is_leaf=lambda leaf: isinstance(leaf, tpu.PerReplica)),
        floats(expected_gradients),
        strict=True,
    ):
        for of_replica in found.values:
            np.testing.assert_allclose(of_replica, right, rtol=2e-5, atol=1e-6)


def test_the_gradients_of_a_tree_train_a_state_of_optax(strategy):
    params, predict = dense()
    del params["steps"]
    optimizer = optax.adam(0.1)

    def loss_fn(params, x, y):
        return tpu.compute_average_loss(squares(predict(params, x), y), global_batch_size=30)

    def step(state, batch):
        params, opt_state = state
        loss, gradients = tpu.value_and_grad(loss_fn, params)(*batch)
        updates, opt_state = optimizer.update(gradients, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    batches = iter(strategy.distribute_dataset([(X, Y)] * 5))
    (trained, _), _ = strategy.run_steps(step, batches, 5, state=(params, optimizer.init(params)))

    opt_state = optimizer.init(params)
    for _ in range(5):
        gradients = jax.grad(lambda params: squares(predict(params, X), Y).mean())(params)
        updates, opt_state = optimizer.update(gradients, opt_state)
        params = optax.apply_updates(params, updates)
    for name, value in params.items():
        np.testing.assert_allclose(trained[name], value, rtol=1e-4, atol=1e-5)


def test_a_tree_outside_a_replica_and_its_own_gradients(strategy):
    params, _ = dense()
    differentiate = tpu.value_and_grad(lambda params, x: (params["w"] * x).sum(), params, local=True)
    _, gradients = differentiate(2.0)
    np.testing.assert_array_equal(gradients["w"], np.full((4, 2), 2.0))
    assert gradients["steps"] is None
    own = strategy.run(lambda x: differentiate(x)[1]["w"], args=(tpu.PerReplica([1.0, 2.0]),))
    assert [value[0, 0] for value in own.values] == [1.0, 2.0]


def test_gradients_of_a_tree_are_not_summed_twice(strategy):
    params, _ = dense()

    def step():
        _, gradients = tpu.value_and_grad(lambda params: (params["w"] ** 2).sum(), params)()
        return tpu.get_replica_context().all_reduce("SUM", gradients)

    with pytest.raises(ReplicaError) as caught:
        strategy.run(step)
    assert str(caught.value) == (
        "all_reduce was given gradients of tpu.value_and_grad, which are summed over the replicas already: leave it "
        "out, or ask for this replica's own gradients with tpu.value_and_grad(loss_fn, parameters, local=True)"
    )


def test_gradients_that_each_replica_makes_are_told_of(strategy):
    params = jnp.ones((1024, 1024))

    def step(x):
        gradients = jax.grad(lambda params: (params * x).sum())(params)
        return tpu.get_replica_context().all_reduce("SUM", gradients)[0, 0]

    with pytest.warns(UserWarning) as told:
        result = strategy.run(step, args=(tpu.PerReplica([1.0, 2.0]),))
    assert result.values == (3.0, 3.0)
    assert {(str(warning.message), warning.filename) for warning in told} == {
        (
            "step adds 4 MiB of each of 2 replicas. If they are gradients, (loss, gradients) = "
            "tpu.value_and_grad(loss_fn, parameters)(...) makes one for all replicas, already summed, and is many "
            "times faster on virtual cores",
            __file__,
        )
    }


def test_gradients_that_psum_adds_are_told_of(strategy):
    params = jnp.ones((1024, 1024))

    @jax.jit
    def mean_gradients(x):
        return jax.lax.pmean(jax.grad(lambda params: (params * x).sum())(params), "replica")

    def step(x):
        return mean_gradients(x)[0, 0]

    with pytest.warns(UserWarning, match="^step adds 4 MiB of each of 2 replicas"):
        strategy.run(step, args=(tpu.PerReplica([1.0, 2.0]),))


def test_an_ensemble_in_vmap_has_the_gradients_of_each_member():
    strategy = tpu.connect("virtual", cores=4)
    rows = np.arange(16.0, dtype="float32")
    batch = next(iter(strategy.distribute_dataset([rows])))

    def step(x):
        def slope(weight):
            loss = lambda w: tpu.compute_average_loss((w - x) ** 2)  # noqa: E731
            return tpu.value_and_grad(loss, weight)()[1]

        return jax.vmap(slope)(jnp.arange(3.0))

    expected = [2 * (w - rows.mean()) for w in range(3)]
    for value in strategy.run(step, args=(batch,)).values:
        np.testing.assert_allclose(value, expected, rtol=1e-6)
