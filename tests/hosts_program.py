"""A program for several processes: each front door trains once. `anytpu launch -n 2 tests/hosts_program.py FOLDER`.

Each process writes its results to FOLDER/INDEX.npz. One process on as many virtual cores, `python hosts_program.py
FOLDER`, writes the expected ones. CASES=fit in the environment runs only that case, and CORES=8 is another number of
cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
from keras.src.backend.common import dtypes

import anytpu as tpu
from anytpu import _env

ROWS, FEATURES, CLASSES = 53, 6, 4
CORES = int(os.environ.get("CORES", "4"))
Case = Callable[[tpu.TPUStrategy, Path], np.ndarray]


def arrays() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(ROWS, FEATURES)), random.integers(0, CLASSES, ROWS)


def batches(rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = arrays()
    return [(x[first : first + rows], y[first : first + rows]) for first in range(0, ROWS, rows)]


def model_in(strategy: tpu.TPUStrategy) -> Any:
    with strategy.scope():
        layers = [keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def flat(*parts: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(part, "float64")) for part in parts])


def fit(strategy: tpu.TPUStrategy, folder: Path) -> np.ndarray:
    model, (x, y) = model_in(strategy), arrays()
    history = model.fit(x, y, 8, epochs=2, verbose=0, validation_data=(x[:21], y[:21])).history
    evaluated = model.evaluate(x, y, verbose=0)
    model.save_weights(folder / "fit.weights.h5")
    return flat(*model.get_weights(), *history.values(), evaluated, model.predict(x[:13], verbose=0))


def table(strategy: tpu.TPUStrategy, folder: Path) -> np.ndarray:
    with strategy.scope():
        ids = keras.Input((3,), dtype="int32")
        layer = tpu.layers.ShardedEmbedding(64, 4, "sum", keras.optimizers.Adagrad(0.1))
        model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
        model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(np.arange(3 * ROWS).reshape(ROWS, 3) % 64, arrays()[0][:, :1], batch_size=12, verbose=0).history
    return flat(history["loss"], np.asarray(layer.embeddings), *(variable.value for variable in model.variables))


def generator(strategy: tpu.TPUStrategy, folder: Path) -> np.ndarray:
    model = model_in(strategy)
    dataset = tpu.pipeline.Dataset.from_arrays(arrays()).shuffle(seed=3).batch(8)
    history = model.fit(dataset, epochs=2, verbose=0).history
    return flat(*model.get_weights(), *history.values())


def custom_loop(strategy: tpu.TPUStrategy, folder: Path) -> np.ndarray:
    model = model_in(strategy)
    with strategy.scope():
        optimizer, mean = keras.optimizers.SGD(0.1), keras.metrics.Mean()

    def step(batch: Any) -> Any:
        x, y = batch

        def loss() -> Any:
            logits = model(x, training=True)
            return tpu.compute_average_loss(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))

        value, gradients = tpu.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean.update_state(value)
        return value

    losses = [strategy.run(step, args=(batch,)) for batch in strategy.distribute_dataset(batches(8))]
    doubled = strategy.run(lambda value: value * 2.0, args=(losses[-1],))
    last = strategy.run_steps(step, iter(strategy.distribute_dataset(batches(8))), steps=5)
    totals = [strategy.reduce("SUM", loss, axis=None) for loss in [*losses, last]]
    return flat(*model.get_weights(), totals, doubled.values, mean.result())


def own_data(strategy: tpu.TPUStrategy, folder: Path) -> np.ndarray:
    """Each host makes the batches of its own replicas; the last step has rows for some of them."""
    every, contexts = batches(4), []

    def dataset(context: tpu.InputContext) -> list[Any]:
        contexts.append(context)
        replicas = context.num_replicas_in_sync // context.num_input_pipelines
        mine = [index // replicas % context.num_input_pipelines == context.input_pipeline_id for index in range(14)]
        return [batch for batch, is_mine in zip(every, mine, strict=True) if is_mine]

    def step(batch: Any) -> Any:
        x, y = batch
        rows = keras.ops.sum(x, axis=1) * keras.ops.cast(y, x.dtype)
        return tpu.compute_average_loss(rows)

    made = strategy.distribute_datasets_from_function(dataset)
    totals = [strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None) for batch in made]
    looped = strategy.run_steps(step, iter(strategy.distribute_datasets_from_function(dataset)), steps=3)
    assert [context.num_replicas_in_sync for context in contexts] == [CORES, CORES]
    return flat(totals, looped.values)


def estimator(strategy: tpu.TPUStrategy, folder: Path) -> np.ndarray:
    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        kernel = keras.Variable(np.zeros((FEATURES, CLASSES)), name="kernel")
        logits = keras.ops.matmul(features, kernel)
        loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        optimizer = tpu.CrossShardOptimizer(keras.optimizers.SGD(0.5))
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, tpu.get_global_step()))

    config = tpu.RunConfig(
        model_dir=str(folder / "estimator"),
        tpu_config=tpu.TPUConfig(iterations_per_loop=2),
        cluster=strategy.cluster_resolver,
    )
    trained = tpu.TPUEstimator(model_fn=model_fn, config=config, use_tpu=True, train_batch_size=8)
    trained.train(
        lambda params: tpu.pipeline.Dataset.from_arrays(arrays()).batch(params["batch_size"], drop_remainder=True),
        steps=4,
    )
    return flat(trained.get_variable_value("kernel"))


def low_level(strategy: tpu.TPUStrategy, folder: Path) -> np.ndarray:
    """TensorFlow 1's functions: shards, replicas, loops, sums over the cores, and an optimizer."""
    x, _ = arrays()
    rows, weight = x[: 4 * CORES], keras.Variable(np.zeros((FEATURES, 1)))
    optimizer = tpu.CrossShardOptimizer(keras.optimizers.SGD(0.1))

    def step(rows: Any) -> Any:
        def loss() -> Any:
            predictions: Any = keras.ops.matmul(rows, weight)
            return tpu.compute_average_loss((predictions - 1.0) ** 2)

        value, gradients = tpu.value_and_grad(loss, [weight])()
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))
        return value

    shard: Any = tpu.shard
    losses = [shard(step, [rows], num_shards=CORES)[0] for _ in range(3)]
    doubled = tpu.batch_parallel(lambda rows: rows * 2.0, [rows], num_shards=CORES)[0]
    summed = tpu.replicate(lambda row: tpu.cross_replica_sum(row), [[row] for row in x[:CORES]])
    repeated = shard(lambda rows: tpu.repeat(3, lambda rows: rows * 2.0, [rows]), [rows], num_shards=CORES)[0]
    devices = [device.device_type for device in tpu.list_devices()]
    assert devices.count("TPU") + devices.count("CPU") > CORES
    return flat(weight, *losses, doubled, *summed, repeated)


_CASES = (fit, table, generator, custom_loop, own_data, estimator, low_level)
CASES: dict[str, Case] = {case.__name__: case for case in _CASES}


def main(folder: Path) -> None:
    """Run the cases on the devices of all processes, and save the results of this process."""
    keras.config.set_floatx("float64")
    # Keras's `result_type` lowers float64 to float32, also under floatx float64; normalisation asks it.
    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
    strategy = tpu.connect() if _env.launched_process() else tpu.connect("virtual", cores=CORES)
    assert strategy.num_replicas_in_sync == CORES
    names = os.environ.get("CASES", " ".join(CASES)).split()
    results = {name: run(strategy, name, folder) for name in names}
    np.savez(folder / f"{jax.process_index()}.npz", allow_pickle=False, **results)


def run(strategy: tpu.TPUStrategy, name: str, folder: Path) -> np.ndarray:
    keras.utils.set_random_seed(5)
    return CASES[name](strategy, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
