"""What a step function may do in `run`, checked on any strategy: each check takes one, and raises when it does not
hold.

The tests run them on virtual cores and on the twin, in float32; a child process runs them on a mesh, in float64.
"""

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

ROWS = 24


def near(actual: Any, expected: Any) -> None:
    """Assert equality to 1e-9 in float64, to 1e-5 in float32, times the largest value."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    tolerance = 1e-9 if keras.config.floatx() == "float64" else 1e-5
    assert np.max(np.abs(actual - expected), initial=0.0) <= tolerance * max(1.0, np.max(np.abs(expected), initial=0.0))


def floats(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(keras.config.floatx())


def split(strategy: Any, x: np.ndarray) -> Any:
    """Return an array as one part a replica; as it is for one replica."""
    replicas = strategy.num_replicas_in_sync
    return x if replicas == 1 else tpu.PerReplica(np.split(x, replicas))


def numbers(strategy: Any) -> Any:
    """Return 1, 2, 3, ... one for each replica."""
    counts = list(np.arange(1, strategy.num_replicas_in_sync + 1).astype(keras.config.floatx()))
    return counts[0] if len(counts) == 1 else tpu.PerReplica(counts)


def parts(strategy: Any, value: Any) -> np.ndarray:
    return np.stack([np.asarray(part) for part in strategy.experimental_local_results(value)])


def values(variables: Any) -> list[np.ndarray]:
    return [np.array(variable.value) for variable in variables]


def train(strategy: Any, build: bool = True) -> dict[str, Any]:
    """Train a small model by a custom step, written as the TensorFlow guide of 2020 writes it, for 5 steps."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3, kernel_regularizer="l2")]
        model = keras.Sequential([keras.layers.Input((4,)), *layers] if build else layers)
        optimizer = keras.optimizers.Adam(0.05)
        mean_loss = keras.metrics.Mean("mean_loss")
        accuracy = keras.metrics.SparseCategoricalAccuracy("accuracy")
    losses_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(images: Any, labels: Any) -> Any:
        def step_fn(inputs: Any) -> Any:
            images, labels = inputs
            model(images)  # Builds it, when nobody has.

            def loss_fn() -> tuple[Any, Any]:
                logits = model(images, training=True)
                loss = tpu.compute_average_loss(losses_of(labels, logits), global_batch_size=ROWS)
                return loss + sum(model.losses) / tpu.get_strategy().num_replicas_in_sync, logits

            variables = model.trainable_variables
            (loss, logits), gradients = tpu.value_and_grad(loss_fn, variables, has_aux=True)()
            optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
            mean_loss.update_state(loss * tpu.get_strategy().num_replicas_in_sync)
            accuracy.update_state(labels, logits)
            return loss

        return strategy.run(step_fn, args=((images, labels),))

    losses = []
    for step in range(5):
        labels = np.random.default_rng(step + 10).integers(0, 3, ROWS)
        loss = train_step(split(strategy, floats((ROWS, 4), step)), split(strategy, labels))
        losses.append(strategy.reduce("SUM", loss, axis=None))
    return {
        "losses": losses,
        "weights": values(model.weights),
        "optimizer": values(optimizer.variables),
        "iterations": int(optimizer.iterations),
        "mean_loss": float(mean_loss.result()),
        "accuracy": float(accuracy.result()),
    }


def check_training_equals_one_device(strategy: Any) -> None:
    before = strategy.compilations
    actual = train(strategy)
    assert strategy.compilations == before + 1
    expected = train(tpu.get_strategy())
    assert actual["iterations"] == expected["iterations"] == 5
    near(actual["losses"], expected["losses"])
    for mine, theirs in zip(
        [*actual["weights"], *actual["optimizer"]], [*expected["weights"], *expected["optimizer"]], strict=True
    ):
        near(mine, theirs)
    near(actual["mean_loss"], expected["mean_loss"])
    assert actual["accuracy"] == expected["accuracy"]


def check_model_and_optimizer_are_built_in_the_first_step(strategy: Any) -> None:
    built = train(strategy, build=False)
    assert [weight.shape for weight in built["weights"]] == [(4, 8), (8,), (8, 3), (3,)]
    assert built["iterations"] == 5
    assert built["losses"][-1] < built["losses"][0]


def check_batch_norm_statistics_are_the_mean_of_the_replicas(strategy: Any) -> None:
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 3))
    x = floats((ROWS, 3))
    strategy.run(lambda rows: layer(rows, training=True), args=(split(strategy, x),))
    expected = []
    for rows in np.split(x, strategy.num_replicas_in_sync):
        alone = keras.layers.BatchNormalization(momentum=0.5)
        alone(rows, training=True)
        expected.append(values(alone.non_trainable_variables))
    # Keras normalises in float32 whatever floatx is.
    for mine, theirs in zip(values(layer.non_trainable_variables), zip(*expected, strict=True), strict=True):
        assert np.allclose(mine, np.mean(theirs, axis=0), rtol=0, atol=1e-6)


def check_dropout_differs_and_its_seed_advances_once(strategy: Any) -> None:
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=7)
    before = np.array(layer.seed_generator.state.value)
    ones = np.ones((64,), keras.config.floatx())
    masks = parts(strategy, strategy.run(lambda x: layer(x, training=True), args=(ones,)))
    assert len({mask.tobytes() for mask in masks}) == strategy.num_replicas_in_sync
    assert np.array_equal(np.array(layer.seed_generator.state.value), before + np.array([0, 1], before.dtype))


def check_dropout_differs_in_a_loss_of_equal_inputs(strategy: Any) -> None:
    with strategy.scope():
        weight = keras.Variable(np.ones(64, keras.config.floatx()))
        layer = keras.layers.Dropout(0.5, seed=7)

    def step() -> Any:
        loss, (gradient,) = tpu.value_and_grad(lambda: (layer(weight, training=True)).sum(), [weight])()
        return loss, gradient

    losses, gradient = strategy.run(step)
    assert strategy.num_replicas_in_sync == 1 or len(set(parts(strategy, losses).tolist())) > 1
    near(parts(strategy, gradient.array).sum(1)[0], parts(strategy, losses).sum())


def check_local_gradients_are_clipped_one_replica_at_a_time(strategy: Any) -> None:
    with strategy.scope():
        weight = keras.Variable(np.zeros(3, keras.config.floatx()))
        optimizer = keras.optimizers.SGD(1.0)

    def step(x: Any) -> Any:
        loss_fn = lambda: (weight * x).sum()  # noqa: E731
        _, (gradient,) = tpu.value_and_grad(loss_fn, [weight], local=True)()
        clipped = gradient / jnp.maximum(1.0, jnp.linalg.norm(gradient))
        optimizer.apply_gradients([(clipped, weight)])
        return gradient

    x = floats((ROWS, 3))
    gradients = parts(strategy, strategy.run(step, args=(split(strategy, x),)))
    expected = np.stack([rows.sum(0) for rows in np.split(x, strategy.num_replicas_in_sync)])
    near(gradients, expected)
    norms = np.maximum(1.0, np.linalg.norm(expected, axis=1, keepdims=True))
    near(np.array(weight.value), -(expected / norms).sum(0))


def check_tree_map_keeps_the_mark(strategy: Any) -> None:
    with strategy.scope():
        weight = keras.Variable(np.zeros(3, keras.config.floatx()))
        optimizer = keras.optimizers.SGD(1.0)

    def step(x: Any) -> Any:
        _, gradients = tpu.value_and_grad(lambda: (weight * x).sum(), [weight])()
        halves = jax.tree.map(lambda gradient: gradient / 2, gradients)
        optimizer.apply_gradients(zip(halves, [weight], strict=True))
        return halves

    x = floats((ROWS, 3))
    (half,) = strategy.run(step, args=(split(strategy, x),))
    near(parts(strategy, half.array), np.stack([x.sum(0) / 2] * strategy.num_replicas_in_sync))
    near(np.array(weight.value), -x.sum(0) / 2)


def check_pure_gradients_are_summed_by_psum(strategy: Any) -> None:
    def step(weight: Any, x: Any) -> Any:
        gradient = jax.grad(lambda weight: (weight * x).sum())(weight)
        return jax.lax.psum(gradient, "replica")

    x, weight = floats((ROWS, 3)), np.zeros(3, keras.config.floatx())
    gradients = parts(strategy, strategy.run(step, args=(weight, split(strategy, x))))
    near(gradients, np.stack([x.sum(0)] * strategy.num_replicas_in_sync))


def check_a_loss_may_speak_to_the_other_replicas(strategy: Any) -> None:
    with strategy.scope():
        weight = keras.Variable(1.0)

    def step(number: Any) -> Any:
        loss_fn = lambda: jax.lax.psum(weight * number, "replica") * number  # noqa: E731
        return tpu.value_and_grad(loss_fn, [weight])()

    _, (gradient,) = strategy.run(step, args=(numbers(strategy),))
    total = sum(range(1, strategy.num_replicas_in_sync + 1))
    near(parts(strategy, gradient.array), np.full(strategy.num_replicas_in_sync, float(total * total)))


def check_aggregations(strategy: Any) -> None:
    with strategy.scope():
        made = {name: keras.Variable(0.0, aggregation=name) for name in ("sum", "mean", "only_first_replica")}

    def step(number: Any) -> None:
        for variable in made.values():
            variable.assign_add(number)

    strategy.run(step, args=(numbers(strategy),))
    replicas = strategy.num_replicas_in_sync
    total = replicas * (replicas + 1) / 2
    expected = {"sum": total, "mean": total / replicas, "only_first_replica": 1.0}
    assert {name: float(variable) for name, variable in made.items()} == expected
    strategy.run(step, args=(numbers(strategy),))
    assert float(made["sum"]) == 2 * total


def check_metrics_are_global_and_may_be_reset_in_a_step(strategy: Any) -> None:
    with strategy.scope():
        metric = keras.metrics.Mean()

    def update(number: Any) -> None:
        metric.update_state(number)

    def restart(number: Any) -> None:
        metric.reset_state()
        metric.update_state(number)

    replicas = strategy.num_replicas_in_sync
    for step in (update, update, restart):
        strategy.run(step, args=(numbers(strategy),))
    assert float(metric.result()) == (replicas + 1) / 2
    assert float(metric.count) == replicas
    strategy.run(lambda: metric.reset_state())
    assert float(metric.count) == 0


def check_a_variable_without_aggregation_may_be_written_the_same(strategy: Any) -> None:
    with strategy.scope():
        counter = keras.Variable(0, dtype="int32", trainable=False)
    for _ in range(3):
        strategy.run(lambda: counter.assign_add(1))
    assert int(counter) == 3


def check_a_loss_may_assign_the_variable_that_it_is_differentiated_by(strategy: Any) -> None:
    with strategy.scope():
        weight = keras.Variable(3.0)

    def loss() -> Any:
        value = weight * weight
        weight.assign(weight + 1.0)
        return value

    def step() -> Any:
        value, (gradient,) = tpu.value_and_grad(loss, [weight], local=True)()
        return value, gradient

    value, gradient = strategy.run(step)
    replicas = strategy.num_replicas_in_sync
    near(parts(strategy, value), np.full(replicas, 9.0))
    near(parts(strategy, gradient), np.full(replicas, 6.0))
    assert float(weight) == 4.0


def check_an_assignment_in_a_scan_is_refused(strategy: Any) -> None:
    with strategy.scope():
        weight = keras.Variable(0.0, aggregation="mean")

    def step(x: Any) -> Any:
        return jax.lax.scan(lambda carry, row: (carry, weight.assign(row.sum())), 0.0, x)[1]

    with pytest.raises(ReplicaError, match=f"^the variable {weight.path!r} is assigned inside a function that JAX"):
        strategy.run(step, args=(split(strategy, floats((ROWS, 3))),))
    assert float(weight) == 0.0


def check_losses_that_layers_add_are_there(strategy: Any) -> None:
    with strategy.scope():
        inner = keras.layers.Dense(2, activity_regularizer=keras.regularizers.L2(1.0), kernel_initializer="ones")
        model = keras.Sequential([keras.layers.Input((3,)), inner])

    def step(x: Any) -> Any:
        def loss_fn() -> Any:
            model(x)
            return tpu.scale_regularization_loss(model.losses)

        return tpu.value_and_grad(loss_fn, model.trainable_variables)()[0]

    x = np.ones((ROWS, 3), keras.config.floatx())
    found = parts(strategy, strategy.run(step, args=(split(strategy, x),)))
    near(found, np.full(strategy.num_replicas_in_sync, 18.0 / strategy.num_replicas_in_sync))


def check_arguments_of_all_kinds(strategy: Any) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones")])

    def step(model: Any, batch: Any, number: Any, *, name: str, double: bool, nothing: None) -> Any:
        assert (name, nothing) == ("sum", None)
        out = model(batch["x"]).sum() + number
        return {"out": out * 2 if double else out, "nothing": nothing, "pair": (jnp.int32(1), [2.5])}

    x = np.ones((ROWS, 3), keras.config.floatx())
    settings = {"name": "sum", "double": True, "nothing": None}
    out = strategy.run(step, args=(model, {"x": split(strategy, x)}, 3), kwargs=settings)
    rows = ROWS // strategy.num_replicas_in_sync
    near(parts(strategy, out["out"]), np.full(strategy.num_replicas_in_sync, 2.0 * (6 * rows + 3)))
    assert out["nothing"] is None
    assert parts(strategy, out["pair"][1][0]).tolist() == [2.5] * strategy.num_replicas_in_sync
    before = strategy.compilations
    strategy.run(step, args=(model, {"x": split(strategy, x)}, 4), kwargs=settings)
    assert strategy.compilations == before
    strategy.run(step, args=(model, {"x": split(strategy, x)}, 4), kwargs={**settings, "double": False})
    assert strategy.compilations == before + 1


def check_outputs_go_back_in(strategy: Any) -> None:
    doubled = strategy.run(lambda number: number * 2, args=(numbers(strategy),))
    again = strategy.run(lambda number: number * 2, args=(doubled,))
    expected = [4.0 * number for number in range(1, strategy.num_replicas_in_sync + 1)]
    assert parts(strategy, again).tolist() == expected
    assert strategy.reduce("SUM", again, axis=None) == sum(expected)


def check_variables_are_returned_as_their_values(strategy: Any) -> None:
    with strategy.scope():
        variable = keras.Variable(2.0)
    assert parts(strategy, strategy.run(lambda: variable)).tolist() == [2.0] * strategy.num_replicas_in_sync


def check_the_step_finds_its_strategy(strategy: Any) -> None:
    found = strategy.run(lambda: jnp.int32(tpu.get_strategy().num_replicas_in_sync))
    assert set(parts(strategy, found).tolist()) == {strategy.num_replicas_in_sync}


def check_a_layer_frozen_between_two_runs_stays_as_it_is(strategy: Any) -> None:
    with strategy.scope():
        layers = [keras.layers.Dense(2), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input((3,)), *layers])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def step(x: Any) -> None:
        variables = model.trainable_variables
        _, gradients = tpu.value_and_grad(lambda: model(x).sum(), variables)()
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    x = split(strategy, floats((ROWS, 3)))
    strategy.run(step, args=(x,))
    layers[0].trainable = False
    frozen, free = values(layers[0].weights), values(layers[1].weights)
    compilations = strategy.compilations
    for _ in range(2):
        strategy.run(step, args=(x,))
    assert strategy.compilations == compilations + 1
    for mine, theirs in zip(values(layers[0].weights), frozen, strict=True):
        assert np.array_equal(mine, theirs)
    assert not np.array_equal(values(layers[1].weights)[1], free[1])
    layers[0].trainable = True
    strategy.run(step, args=(x,))
    assert strategy.compilations == compilations + 1


def check_accumulated_and_averaged_gradients(strategy: Any) -> None:
    def steps(strategy: Any) -> list[np.ndarray]:
        with strategy.scope():
            weight = keras.Variable(np.ones(3, keras.config.floatx()))
            settings = {"gradient_accumulation_steps": 2, "use_ema": True, "global_clipnorm": 1.0}
            optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), **settings)

        def step(x: Any) -> None:
            loss_fn = lambda: tpu.compute_average_loss((weight * x).sum(-1) ** 2, global_batch_size=ROWS)  # noqa: E731
            _, gradients = tpu.value_and_grad(loss_fn, [weight])()
            optimizer.apply_gradients(zip(gradients, [weight], strict=True))

        for seed in range(4):
            strategy.run(step, args=(split(strategy, floats((ROWS, 3), seed)),))
        return values([weight, *optimizer.variables])

    for mine, theirs in zip(steps(strategy), steps(tpu.get_strategy()), strict=True):
        near(mine, theirs)


def check_parameters_that_come_back_the_same_go_in_again_as_one_array(strategy: Any) -> None:
    def step(params: Any, x: Any) -> tuple[Any, Any, Any]:
        _, gradient = tpu.value_and_grad(lambda params: (params * x).sum(), params)()
        return params - 0.1 * gradient, x.sum(), jnp.float32(x.shape[0])

    replicas = strategy.num_replicas_in_sync
    full, cut = floats((ROWS, 3)), floats((ROWS - 5, 3), 1)
    params = expected = floats((3,), 2)
    before = strategy.compilations
    for rows in (full, full, cut, cut, full):
        batch = next(iter(strategy.distribute_dataset([rows])))
        params, mine, counts = strategy.run(step, args=(params, batch))
        expected = expected - 0.1 * rows.sum(0)
        near(parts(strategy, params), np.stack([expected] * replicas))
        near(parts(strategy, mine).sum(), rows.sum())
        assert int(parts(strategy, counts).sum()) == len(rows)
    assert strategy.compilations == before + 2
    near(strategy.reduce("MEAN", params, axis=None), expected)
    assert strategy.gather(params, axis=0).shape == (3 * replicas,)
    if replicas > 1:
        assert params.is_shared and not mine.is_shared
        near(strategy.reduce("SUM", params, axis=None), replicas * expected)
        near(params.stacked(), np.stack([expected] * replicas))


def check_gradients_of_jax_are_averaged_as_under_pmap(strategy: Any) -> None:
    kernel, x = floats((64, 80)), floats((ROWS, 64), 1) / 8

    def loss_fn(kernel: Any, x: Any) -> Any:
        return (jnp.tanh(x @ kernel) ** 2).mean()

    def step(kernel: Any, x: Any) -> Any:
        return kernel - 0.1 * jax.lax.pmean(jax.grad(loss_fn)(kernel, x), "replica")

    value = strategy.run(step, args=(kernel, split(strategy, x)))
    expected = kernel - 0.1 * jax.grad(loss_fn)(jnp.asarray(kernel), x)
    near(parts(strategy, value), np.stack([expected] * strategy.num_replicas_in_sync))


def check_each_replica_computes_with_its_own_rows(strategy: Any) -> None:
    replicas = strategy.num_replicas_in_sync
    rows, weight = floats((3 * replicas - 1, 2), 6), floats(2, 7)
    parts = [rows[3 * i : 3 * i + 3] for i in range(replicas)]
    batch = next(iter(strategy.distribute_dataset([rows])))

    def total(value: Any) -> Any:
        return jax.lax.psum(value, "replica")

    def centred(weight: Any, x: Any) -> Any:
        return jnp.sum((x @ weight - total(jnp.sum(x @ weight)) / total(len(x))) ** 2)

    def step(x: Any, weight: Any) -> Any:
        same = jax.lax.cond(total(x.sum()) > -9, lambda: total(x.max()), lambda: 0.0)
        own = jax.lax.cond(x.sum() > 0, lambda: total(x.min()), lambda: -1.0)
        scanned = jax.lax.fori_loop(0, 3, lambda i, c: c + total(x.sum()) * i, 0.0)
        mean, slope = tpu.value_and_grad(lambda w: tpu.compute_average_loss((x @ w) ** 2), weight)()
        slopes = tpu.value_and_grad(centred, weight)(x)[1]
        gathered = tpu.get_replica_context().all_gather(x, 0)
        turned = jax.lax.psum(jax.lax.axis_index("replica") * len(x), "replica")
        return jnp.arange(len(x)), jnp.stack([same, own, scanned]), (total(mean), slope), slopes, gathered, turned

    ids, numbers, (mean, slope), slopes, gathered, turned = strategy.run(step, args=(batch, weight))
    if replicas == 1:
        return
    high, low = sum(part.max() for part in parts), sum(part.min() for part in parts)
    for index, part in enumerate(parts):
        near(ids.values[index], np.arange(len(part)))
        near(numbers.values[index], [high, low if part.sum() > 0 else -1.0, 3 * rows.sum()])
    near(mean.values[0], np.mean((rows @ weight) ** 2))
    near(slope.values[-1], jax.grad(lambda w: jnp.mean((rows @ w) ** 2))(jnp.asarray(weight)))
    near(slopes.values[-1], jax.grad(lambda w: jnp.sum((rows @ w - jnp.mean(rows @ w)) ** 2))(jnp.asarray(weight)))
    near(gathered.values[0], rows)
    near(turned.values[0], sum(index * len(part) for index, part in enumerate(parts)))
    assert slope.is_shared and gathered.is_shared and not numbers.is_shared


CHECKS: dict[str, Callable[[Any], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
