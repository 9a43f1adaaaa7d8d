"""Custom loops and an estimator with checkpoints, as a process of its own, which may be killed; see scripts/faults.

Usage: checkpointed_loop.py FOLDER VARIANT [--every STEPS]
"""

from __future__ import annotations

import argparse
import hashlib
import json
from typing import Any

import anytpu as tpu  # isort: skip
import jax
import jax.numpy as jnp
import keras
import numpy as np

VARIANTS = ("loop", "steps", "jax", "estimator")
X = np.random.default_rng(0).normal(size=(48, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def keras_loop(saved: tpu.Checkpointer, stride: int, steps: int) -> Any:
    """Train with a step function: one step a call, or `stride` steps with `run_steps`."""
    keras.utils.set_random_seed(5)
    strategy = tpu.connect("virtual", cores=2)
    with strategy.scope():
        parts = [keras.Input((3,)), keras.layers.Dense(64), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        model = keras.Sequential(parts)
        optimizer = keras.optimizers.Adam(0.01)
    dataset = tpu.pipeline.Dataset.from_arrays((X, Y)).shuffle(seed=2).repeat().batch(8)
    batches = iter(strategy.distribute_dataset(dataset))

    def step(batch: Any) -> Any:
        x, y = batch

        def loss() -> Any:
            return tpu.compute_average_loss(keras.losses.mean_squared_error(y, model(x, training=True)))

        value, gradients = tpu.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply(gradients, model.trainable_variables)
        return value

    for _ in saved.steps(range(0, steps, stride), model=model, optimizer=optimizer, batches=batches):
        if stride > 1:
            strategy.run_steps(step, batches, steps=stride)
        else:
            strategy.run(step, args=(next(batches),))
    return [np.asarray(variable.value) for variable in [*model.variables, *optimizer.variables]]


def jax_loop(saved: tpu.Checkpointer, steps: int) -> Any:
    """Train without Keras: the state is a dict of arrays."""

    @jax.jit
    def step(state: Any) -> Any:
        gradient = jax.grad(lambda w: ((X @ w - Y) ** 2).mean())(state["w"])
        momentum = 0.9 * state["momentum"] + gradient
        return {"w": state["w"] - 0.01 * momentum, "momentum": momentum}

    state = {"w": jnp.ones((3, 1)), "momentum": jnp.zeros((3, 1))}
    for _ in saved.steps(steps, state=state):
        state.update(step(state))
    return jax.tree.leaves(state)


def estimator(folder: str, every: int, steps: int) -> Any:
    """Train a TPUEstimator, and return the arrays of its last checkpoint."""

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        x = keras.layers.Dropout(0.2)(keras.layers.Dense(16, activation="relu")(features), training=True)
        loss = keras.ops.mean(keras.losses.mean_squared_error(labels, keras.layers.Dense(1)(x)))
        train_op = tpu.CrossShardOptimizer(keras.optimizers.Adam(0.02)).minimize(loss)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(params: dict[str, Any]) -> Any:
        return tpu.pipeline.Dataset.from_arrays((X, Y)).shuffle(seed=2).repeat().batch(params["batch_size"])

    config = tpu.RunConfig(
        cluster=tpu.TPUClusterResolver("virtual", cores=2),
        tf_random_seed=3,
        save_checkpoints_steps=every,
        keep_checkpoint_max=2,
        tpu_config=tpu.TPUConfig(iterations_per_loop=1),
    )
    trained = tpu.TPUEstimator(model_fn, folder, config, train_batch_size=8)
    trained.train(input_fn, max_steps=steps)
    return [trained.get_variable_value(name) for name in sorted(trained.get_variable_names())]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train, and return a digest of the results."""
    saved = tpu.Checkpointer(options.folder, every_steps=options.every, keep=2)
    if options.variant == "estimator":
        arrays = estimator(options.folder, options.every, options.steps)
    elif options.variant == "jax":
        arrays = jax_loop(saved, options.steps)
    else:
        arrays = keras_loop(saved, 3 if options.variant == "steps" else 1, options.steps)
    return {"arrays": hashlib.md5(b"".join(np.asarray(array).tobytes() for array in arrays)).hexdigest()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    print(json.dumps(run(parser.parse_args())))
