"""Programs on a worker: the front doors give the numbers of virtual cores of this process, bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import anytpu as tpu
from anytpu.errors import ProgramError
from worker.worker_process import WorkerProcess

X = np.random.default_rng(0).random((96, 12, 12, 1), dtype="float32")
Y = np.arange(96) % 10


def trained(name: str, **arguments: Any) -> tuple[Any, ...]:
    keras.utils.set_random_seed(7)
    strategy = tpu.connect(name)
    with strategy.scope():
        layers = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input((12, 12, 1)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], **arguments)
    losses = [model.fit(X, Y, batch_size=20, epochs=epochs, verbose=0).history["loss"] for epochs in (3, 1)]
    return (
        *losses,
        model.evaluate(X, Y, verbose=0),
        model.predict(X, verbose=0),
        *[np.asarray(weight.value) for weight in model.weights],
    )


@pytest.mark.parametrize("arguments", [{}, {"steps_per_execution": 2}], ids=str)
def test_fit_evaluate_predict(worker: WorkerProcess, arguments: dict[str, Any]):
    for remote, local in zip(trained(worker.url, **arguments), trained("v2-8", **arguments), strict=True):
        np.testing.assert_array_equal(remote, local)


COUNT: Any = keras.Variable(0.0)
SEEDS = keras.random.SeedGenerator(5)


class Watched(keras.layers.Layer):
    """Updates a mean of its own, and a counter and a seed generator that no model knows."""

    def __init__(self) -> None:
        super().__init__()
        self.level = keras.metrics.Mean(name="level")

    def call(self, x: Any, training: bool = False) -> Any:
        COUNT.assign_add(1.0)
        self.level.update_state(x)
        return x + keras.random.normal(keras.ops.shape(x), seed=SEEDS) if training else x


def watched(name: str) -> tuple[Any, ...]:
    COUNT.assign(0.0)
    SEEDS.state.assign([0, 5])
    with tpu.connect(name).scope():
        keras.utils.set_random_seed(7)
        model: Any = keras.Sequential([keras.Input((12, 12, 1)), Watched(), keras.layers.Flatten()])
        model.compile("sgd", lambda y, y_pred: keras.ops.mean(y_pred, axis=-1))
    history = model.fit(X, Y, batch_size=20, epochs=2, verbose=0).history
    return (
        history["level"],
        history["loss"],
        model.evaluate(X, Y, verbose=0),
        float(COUNT.value),
        np.asarray(SEEDS.state.value),
    )


def test_state_outside_of_the_model(worker: WorkerProcess):
    for remote, local in zip(watched(worker.url), watched("v2-8"), strict=True):
        np.testing.assert_array_equal(remote, local)
    assert float(COUNT.value) == 2 * 5 + 3


def batches() -> Any:
    for start in range(0, 64, 16):
        yield X[start : start + 16].reshape(16, -1), Y[start : start + 16].astype("float32")


def looped(name: str) -> Any:
    strategy, optimizer = tpu.connect(name), optax.sgd(0.1)
    weights = jnp.zeros(144)

    def step(state: Any, batch: Any) -> Any:
        weights, slots = state
        x, y = batch
        loss, slope = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
        slope = tpu.get_replica_context().all_reduce("MEAN", slope)
        updates, slots = optimizer.update(slope, slots)
        return (optax.apply_updates(weights, updates), slots), loss

    return strategy.run_steps(
        step, iter(strategy.distribute_dataset(list(batches()))), 4, state=(weights, optimizer.init(weights))
    )


def test_many_steps_of_a_custom_loop(worker: WorkerProcess):
    remote, local = looped(worker.url), looped("v2-8")
    np.testing.assert_array_equal(remote[0][0], local[0][0])


def test_a_step_function(worker: WorkerProcess):
    strategy = tpu.connect(worker.url)
    rows = tpu.PerReplica([jnp.array([float(index)]) for index in range(8)])
    total = strategy.run(lambda x: x.sum(), args=(rows,))
    assert strategy.reduce("SUM", total, axis=None) == 28


def test_values_stay_on_the_worker_until_they_are_read(worker: WorkerProcess):
    with tpu.connect(worker.url).scope():
        variable = keras.Variable(np.ones(3, "float32"))
    strategy = tpu.connect(worker.url)
    strategy.run(lambda: variable.assign(variable + 1))
    assert np.asarray(variable.value).tolist() == [2, 2, 2]


def test_the_devices_are_those_of_the_worker(worker: WorkerProcess):
    resolver = tpu.TPUClusterResolver(worker.url)
    tpu.initialize_tpu_system(resolver)
    names = [device.name for device in tpu.list_logical_devices("TPU")]
    assert names == [f"/job:worker/replica:0/task:0/device:TPU:{index}" for index in range(8)]
    assert resolver.master() == worker.bare_url
    assert resolver.cluster_spec() == {"worker": [worker.target]}
    assert repr(resolver) == f"TPUClusterResolver({worker.bare_url})"


def test_python_does_not_travel(worker: WorkerProcess):
    def step(x: Any) -> Any:
        return jax.pure_callback(lambda value: value, x, x)

    with pytest.raises(ProgramError, match="calls back into Python") as caught:
        tpu.connect(worker.url).run(step, args=(jnp.ones(2),))
    assert "A program that leaves this process cannot take Python code along" in str(caught.value)
