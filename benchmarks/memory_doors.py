"""Front doors that make a model, use it once and return it: for `memory.py` and `tests/test_memory.py`.

Idea: each door is a pair. `ours` goes through anytpu; `plain` does the same work with Keras and JAX alone. Both return
the objects that must be freed when the caller drops them.

Rule: no door keeps anything of its own. A model is wide, so that one that is kept is seen in the process's memory.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from typing import Any

import anytpu as tpu  # isort: skip
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax

CORES = 2
FEATURES, CLASSES, ROWS = 64, 10, 32
SILENT: Any = 0


@dataclasses.dataclass(frozen=True)
class Door:
    """One way into anytpu, and the same work without it.

    Attributes:
        ours: makes and uses a model of a hidden width through anytpu; returns what must be freed.
        plain: the same with Keras and JAX alone; None where there is no counterpart.
    """

    ours: Callable[[int], list[Any]]
    plain: Callable[[int], list[Any]] | None


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, FEATURES)).astype("float32"), rng.integers(0, CLASSES, ROWS)


def make_model(width: int) -> keras.Model:
    layers = [keras.layers.Dense(width, activation="relu"), keras.layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((FEATURES,)), *layers])


def compiled(width: int) -> keras.Model:
    model = make_model(width)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


_STRATEGIES: list[tpu.TPUStrategy] = []


def strategy() -> tpu.TPUStrategy:
    """Return the one strategy of all doors: what it keeps is seen."""
    if not _STRATEGIES or not _STRATEGIES[0].system.is_running:
        _STRATEGIES[:] = [tpu.connect("virtual", cores=CORES)]
    return _STRATEGIES[0]


# Keras's own loops: the same calls, inside a scope and outside.


def in_scope(use: Callable[[keras.Model], Any]) -> Door:
    """Return the door of a method of a Keras model."""

    def plain(width: int) -> list[Any]:
        model = compiled(width)
        use(model)
        return [model, model.optimizer]

    def ours(width: int) -> list[Any]:
        with strategy().scope():
            return plain(width)

    return Door(ours, plain)


def fit(model: keras.Model) -> None:
    model.fit(*rows(), batch_size=16, verbose=SILENT)


def fit_and_clear(model: keras.Model) -> None:
    fit(model)
    keras.utils.clear_session()


def fit_stream(model: keras.Model) -> None:
    x, y = rows()
    model.fit(((x[i : i + 8], y[i : i + 8]) for i in range(0, ROWS, 8)), verbose=SILENT)


def on_batch(model: keras.Model) -> None:
    x, y = rows()
    model.train_on_batch(x, y)
    model.test_on_batch(x, y)
    model.predict_on_batch(x)


def ours_input_shares(width: int) -> list[Any]:
    with strategy().scope():
        model = compiled(width)
    fit_stream(model)
    tpu.input_shares(model)
    tpu.step_logs(model)
    return [model]


# Custom steps.


def cross_entropy(y: Any, logits: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)


def trained_on(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    """Train one replica's model on its rows, as the TPU guide does."""

    def loss_of() -> Any:
        return tpu.compute_average_loss(cross_entropy(y, model(x)), global_batch_size=ROWS)

    loss, gradients = tpu.value_and_grad(loss_of, model.trainable_variables)()
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


def made(width: int) -> tuple[keras.Model, keras.optimizers.Optimizer]:
    with strategy().scope():
        return make_model(width), keras.optimizers.Adam(1e-3)


def batches() -> Any:
    return iter(strategy().distribute_dataset([rows()] * 3))


def run_closure(width: int) -> list[Any]:
    model, optimizer = made(width)

    def step(x: Any, y: Any) -> Any:
        return trained_on(model, optimizer, x, y)

    strategy().run(step, args=next(batches()))
    return [model, optimizer]


CELL = "def step(x, y):\n    return trained_on(model, optimizer, x, y)"


def run_globals(width: int) -> list[Any]:
    model, optimizer = made(width)
    names = {"trained_on": trained_on, "model": model, "optimizer": optimizer}
    exec(CELL, names)
    strategy().run(names["step"], args=next(batches()))  # pyright: ignore[reportArgumentType]
    return [model, optimizer]


def run_arguments(width: int) -> list[Any]:
    model, optimizer = made(width)
    strategy().run(trained_on, args=(model, optimizer, *next(batches())))
    return [model, optimizer]


def run_method(width: int) -> list[Any]:
    class Job:
        def __init__(self) -> None:
            self.model, self.optimizer = made(width)

        def step(self, x: Any, y: Any) -> Any:
            return trained_on(self.model, self.optimizer, x, y)

    job = Job()
    strategy().run(job.step, args=next(batches()))
    return [job, job.model, job.optimizer]


def run_loop(width: int) -> list[Any]:
    model, optimizer = made(width)

    def step(batch: Any) -> Any:
        return trained_on(model, optimizer, *batch)

    strategy().run_steps(step, batches(), 3)
    return [model, optimizer]


def plain_step(width: int) -> list[Any]:
    """Train a Keras model with a step of one's own, as Keras's guide for JAX does."""
    model, optimizer = make_model(width), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    def loss_of(trainable: Any, non_trainable: Any, x: Any, y: Any) -> Any:
        logits, non_trainable = model.stateless_call(trainable, non_trainable, x)
        return cross_entropy(y, logits).mean(), non_trainable

    @jax.jit
    def step(state: Any, x: Any, y: Any) -> Any:
        trainable, non_trainable, slots = state
        grad = jax.value_and_grad(loss_of, has_aux=True)
        (loss, non_trainable), gradients = grad(trainable, non_trainable, x, y)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return loss, (trainable, non_trainable, slots)

    parts = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    step([[variable.value for variable in part] for part in parts], *rows())
    return [model, optimizer]


class Weights(dict):
    """Weights of a function of JAX, which a weak reference can be made to."""


def weights_of(width: int) -> Weights:
    keys = jax.random.split(jax.random.key(0))
    return Weights(
        hidden=jax.random.normal(keys[0], (FEATURES, width)) * 0.1,
        out=jax.random.normal(keys[1], (width, CLASSES)) * 0.1,
    )


def loss_of_weights(weights: Any, x: Any, y: Any) -> Any:
    logits = jax.nn.relu(x @ weights["hidden"]) @ weights["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def run_state(width: int) -> list[Any]:
    weights, scale = weights_of(width), np.ones((1000, 1000), "float32")

    def step(weights: Any, batch: Any) -> Any:
        gradient = jax.grad(loss_of_weights)(weights, *batch)
        total = tpu.get_replica_context().all_reduce("SUM", gradient)
        return jax.tree.map(lambda w, g: w - 0.1 * g * jnp.asarray(scale)[0, 0], weights, total), None

    strategy().run_steps(step, batches(), 3, state=dict(weights))
    return [weights["hidden"], scale]


def plain_state(width: int) -> list[Any]:
    weights, scale = weights_of(width), np.ones((1000, 1000), "float32")

    @jax.jit
    def step(weights: Any, x: Any, y: Any) -> Any:
        gradient = jax.grad(loss_of_weights)(weights, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g * jnp.asarray(scale)[0, 0], weights, gradient)

    step(dict(weights), *rows())
    return [weights["hidden"], scale]


def distributed(width: int) -> list[Any]:
    x = np.ones((ROWS, width), "float32")
    for batch in strategy().distribute_dataset([x]):
        strategy().run(lambda rows: rows.sum(), args=(batch,))
    return [x]


def plain_sum(width: int) -> list[Any]:
    x = np.ones((ROWS, width), "float32")
    jax.jit(lambda rows: rows.sum())(x)
    return [x]


def rewritten(width: int) -> list[Any]:
    strategy()
    weights, optimizer = weights_of(width), tpu.CrossShardOptimizer(optax.adam(1e-3))

    def train(weights: Any, x: Any, y: Any) -> Any:
        gradient = jax.grad(loss_of_weights)(weights, x, y)
        updates, _ = optimizer.update(gradient, optimizer.init(weights), weights)
        return [optax.apply_updates(weights, updates)]

    tpu.rewrite(train, [dict(weights), *rows()])
    tpu.shard(lambda x, y: train(dict(weights), x, y)[0]["out"], list(rows()))
    return [weights["hidden"], optimizer]


def plain_rewritten(width: int) -> list[Any]:
    weights, optimizer = weights_of(width), optax.adam(1e-3)

    @jax.jit
    def train(weights: Any, x: Any, y: Any) -> Any:
        gradient = jax.grad(loss_of_weights)(weights, x, y)
        updates, _ = optimizer.update(gradient, optimizer.init(weights), weights)
        return optax.apply_updates(weights, updates)

    train(dict(weights), *rows())
    jax.jit(lambda x, y: train(dict(weights), x, y)["out"])(*rows())
    return [weights["hidden"]]


# Front doors of older programs.


def converted(width: int) -> list[Any]:
    original = compiled(width)
    model = tpu.keras_to_tpu_model(original, tpu.TPUDistributionStrategy(tpu.TPUClusterResolver("virtual", cores=2)))
    fit(model)
    model.sync_to_cpu()
    return [original, model, model.optimizer]


def plain_converted(width: int) -> list[Any]:
    original = compiled(width)
    model = keras.models.clone_model(original)
    fit(model)
    original.set_weights(model.get_weights())
    return [original, model, model.optimizer]


def estimated(width: int) -> list[Any]:
    def model_fn(features: Any, labels: Any, mode: str, params: dict) -> Any:
        logits = keras.layers.Dense(CLASSES)(keras.layers.Dense(width, activation="relu")(features))
        if mode == tpu.ModeKeys.PREDICT:
            return tpu.TPUEstimatorSpec(mode, predictions={"logits": logits})
        loss = keras.ops.mean(cross_entropy(labels, logits))
        if mode == tpu.ModeKeys.EVAL:
            return tpu.TPUEstimatorSpec(mode, loss=loss)
        optimizer = tpu.CrossShardOptimizer(keras.optimizers.Adam(1e-3))
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    cluster = tpu.TPUClusterResolver("virtual", cores=CORES)
    config = tpu.RunConfig(cluster=cluster, tpu_config=tpu.TPUConfig(iterations_per_loop=2))
    with tempfile.TemporaryDirectory() as folder:
        estimator = tpu.TPUEstimator(
            model_fn, folder, config, train_batch_size=ROWS, eval_batch_size=ROWS, predict_batch_size=ROWS
        )
        estimator.train(lambda params: [rows()] * 2, max_steps=2)
        estimator.evaluate(lambda params: [rows()], steps=1)
        list(estimator.predict(lambda params: rows()[0]))
    return [estimator, model_fn]


def plain_estimated(width: int) -> list[Any]:
    model = compiled(width)
    fit(model)
    model.evaluate(*rows(), verbose=SILENT)
    model.predict(rows()[0], verbose=SILENT)
    with tempfile.TemporaryDirectory() as folder:
        model.save_weights(f"{folder}/model.weights.h5")
    return [model]


# What looks at a model and does not train it.


def planned(width: int) -> list[Any]:
    model = compiled(width)
    return [model, *tpu.plan(model, batch_size=ROWS, tpu="v2-8", use_cache=False)]


def checked(width: int) -> list[Any]:
    model = compiled(width)
    return [model, tpu.check(model, batch_size=8, cores=CORES)]


def chip(width: int) -> list[Any]:
    model = make_model(width)
    program = tpu.chip.compile(model, calibration=rows()[0], batch=8)
    program.run(rows()[0])
    program.time()
    return [model, program, program.image()]


def connected(width: int) -> list[Any]:
    one = tpu.connect("virtual", cores=CORES)
    part = one.part(1)
    part.run(lambda: jnp.ones(width).sum())
    return [one, part]


def piped(width: int) -> list[Any]:
    x = np.ones((ROWS, width), "float32")
    dataset = tpu.pipeline.Dataset.from_arrays(x).map(doubled).prefetch(workers=1).batch(8)
    walk = iter(dataset)
    next(walk)  # Left in the middle: its worker must end with it.
    return [x, dataset, walk]


def doubled(row: np.ndarray) -> np.ndarray:
    return row * 2


DOORS = {
    "fit": in_scope(fit),
    "fit, clear_session": in_scope(fit_and_clear),
    "fit, a generator": in_scope(fit_stream),
    "evaluate": in_scope(lambda model: model.evaluate(*rows(), verbose=SILENT)),
    "predict": in_scope(lambda model: model.predict(rows()[0], verbose=SILENT)),
    "train_on_batch and its siblings": in_scope(on_batch),
    "input_shares, step_logs": Door(ours_input_shares, in_scope(fit_stream).plain),
    "run, model in the closure": Door(run_closure, plain_step),
    "run, model in the globals": Door(run_globals, plain_step),
    "run, model in the arguments": Door(run_arguments, plain_step),
    "run, a method": Door(run_method, plain_step),
    "run_steps": Door(run_loop, plain_step),
    "run_steps with state": Door(run_state, plain_state),
    "distribute_dataset": Door(distributed, plain_sum),
    "rewrite, shard, CrossShardOptimizer": Door(rewritten, plain_rewritten),
    "keras_to_tpu_model, sync_to_cpu": Door(converted, plain_converted),
    "TPUEstimator": Door(estimated, plain_estimated),
    "plan": Door(planned, None),
    "check": Door(checked, None),
    "chip.compile, run, time": Door(chip, None),
    "connect, part": Door(connected, None),
    "pipeline, worker processes": Door(piped, None),
}
"""The front doors, by name."""
