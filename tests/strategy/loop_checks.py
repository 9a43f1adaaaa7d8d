"""What custom loops over data sets must do, checked on any strategy, as `replica_checks.py` is."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import layers

import anytpu as tpu
from strategy.replica_checks import floats, near, values

LABELS = np.random.default_rng(1).integers(0, 3, 64)


def batches(rows: int, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    x = floats((rows, 4))
    return [(x[i : i + size], LABELS[i : min(i + size, rows)]) for i in range(0, rows, size)]


class Job:
    """A small model with its optimizer and metrics, and a step written as the TensorFlow guide writes it."""

    def __init__(self, strategy: Any, global_batch_size: int | None = None) -> None:
        keras.utils.set_random_seed(3)
        with strategy.scope():
            self.model = keras.Sequential([layers.Input((4,)), layers.Dense(8, activation="relu"), layers.Dense(3)])
            self.optimizer = keras.optimizers.Adam(0.05)
            self.mean_loss = keras.metrics.Mean("mean_loss")
            self.accuracy = keras.metrics.SparseCategoricalAccuracy("accuracy")
        self.global_batch_size = global_batch_size

    def step(self, inputs: Any) -> Any:
        images, labels = inputs

        def loss_fn() -> tuple[Any, Any]:
            logits = self.model(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tpu.compute_average_loss(losses, global_batch_size=self.global_batch_size)
            return loss, (logits, losses)

        variables = self.model.trainable_variables
        (loss, (logits, losses)), gradients = tpu.value_and_grad(loss_fn, variables, has_aux=True)()
        self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        self.mean_loss.update_state(losses)
        self.accuracy.update_state(labels, logits)
        return loss, logits

    def state(self) -> list[np.ndarray]:
        return values([*self.model.variables, *self.optimizer.variables])

    def metrics(self) -> list[float]:
        return [float(self.mean_loss.result()), float(self.accuracy.result())]


@functools.cache
def on_one_device(rows: int, size: int, times: int = 1) -> tuple[list[np.ndarray], list[float], list[float]]:
    """Run the steps on the default strategy, uncompiled: state, metrics, and the loss of each step."""
    strategy = tpu.get_strategy()
    assert strategy.num_replicas_in_sync == 1
    job = Job(strategy)
    losses = [float(strategy.run(job.step, args=(batch,))[0]) for batch in batches(rows, size) * times]
    return job.state(), job.metrics(), losses


def every_size_is_exact(strategy: Any) -> None:
    for rows, size in [(20, 16), (21, 10), (1, 6)]:
        steps = batches(rows, size)
        state, metrics, losses = on_one_device(rows, size)
        job = Job(strategy)
        for batch, expected in zip(strategy.distribute_dataset(steps), losses, strict=True):
            loss, logits = strategy.run(job.step, args=(batch,))
            near(strategy.reduce("SUM", loss), expected)
            assert strategy.gather(logits, axis=0).shape == (*strategy.gather(batch[1], axis=0).shape, 3)
        near(np.array(job.metrics()), np.array(metrics))
        for got, expected in zip(job.state(), state, strict=True):
            near(got, expected)


def many_steps_are_the_same_steps(strategy: Any) -> None:
    steps = batches(61, 16) * 3
    state, metrics, losses = on_one_device(61, 16, times=3)
    job = Job(strategy)
    iterator = iter(strategy.distribute_dataset(steps))
    before = strategy.compilations
    for count in (1, 4, len(steps) - 5):
        loss, _ = strategy.run_steps(job.step, iterator, count)
    near(strategy.reduce("SUM", loss), losses[-1])
    near(np.array(job.metrics()), np.array(metrics))
    for got, expected in zip(job.state(), state, strict=True):
        near(got, expected)
    # One for full batches, and one for those that do not fill all replicas.
    assert strategy.compilations - before <= 2


def a_pure_step_has_a_state_of_its_own(strategy: Any) -> None:
    weights = floats((4, 3), seed=5)

    def step(state: Any, batch: Any) -> Any:
        x, labels = batch

        def loss_fn(weights: Any) -> Any:
            losses = keras.losses.sparse_categorical_crossentropy(labels, x @ weights, from_logits=True)
            return tpu.compute_average_loss(losses, global_batch_size=16)

        loss, gradient = jax.value_and_grad(loss_fn)(state["weights"])
        gradient = tpu.get_replica_context().all_reduce("SUM", gradient)
        return {"weights": state["weights"] - 0.1 * gradient, "steps": state["steps"] + 1}, loss

    steps = batches(64, 16)
    single = {"weights": jnp.asarray(weights), "steps": 0}
    for batch in steps:
        single, expected = tpu.get_strategy().run(step, args=(single, batch))
    given = {"weights": weights, "steps": 0}
    state, loss = strategy.run_steps(step, iter(strategy.distribute_dataset(steps)), 4, state=given)
    near(state["weights"], single["weights"])
    near(strategy.reduce("SUM", loss), expected)
    assert int(state["steps"]) == 4
    assert given["weights"] is weights
    state, _ = strategy.run_steps(step, iter(strategy.distribute_dataset(steps)), 4, state=state)
    assert int(state["steps"]) == 8


def rows_of_the_statistics_count_by_their_number(strategy: Any) -> None:
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        norm = keras.layers.BatchNormalization(momentum=0.0, axis=-1)
        norm.build((None, 4))
    # Each replica's rows are equal, so that its statistics are exact: the mean of all rows must come out.
    x = np.repeat(floats((replicas, 4)), 2, axis=0)[: max(2, 2 * (replicas - 1))]
    iterator = iter(strategy.distribute_dataset([np.zeros((2 * replicas, 4), x.dtype), x]))
    next(iterator)
    strategy.run(lambda batch: norm(batch, training=True), args=(next(iterator),))
    # Keras computes the moments in float32 whatever the dtype.
    assert np.allclose(np.asarray(norm.moving_mean.value), x.mean(0), atol=1e-6)


LOOP_CHECKS = {
    check.__name__: check
    for check in (
        every_size_is_exact,
        many_steps_are_the_same_steps,
        a_pure_step_has_a_state_of_its_own,
        rows_of_the_statistics_count_by_their_number,
    )
}
