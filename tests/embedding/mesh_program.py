"""Trains tables on this process's devices and on virtual cores, and prints the largest differences as JSON.

python tests/embedding/mesh_program.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

import anytpu as tpu
from anytpu.embedding.stacked_tables import StackedTables
from anytpu.system.cores import Address

IDS, WIDTH, ROWS = 64, 4, 53
RNG = np.random.default_rng(0)
SEEN, ORDER = RNG.integers(-1, IDS, (ROWS, 5)), RNG.integers(0, IDS, (ROWS, 3))
TARGETS = RNG.normal(size=(ROWS, 1))
START = RNG.normal(size=(IDS, WIDTH))


def strategy_of(kind: str, cores: int, **settings: Any) -> tpu.TPUStrategy:
    """Return a strategy on the CPU devices of this process ("local"), which no user's resolver takes, or virtual."""
    return tpu.TPUStrategy(tpu.TPUClusterResolver.from_address(Address(kind, cores)), **settings)


def model_in(strategy: Any, optimizer: Any) -> Any:
    """Return a model with a combined feature and a sequence, which share a table."""
    with strategy.scope():
        keras.utils.set_random_seed(1)
        seen, order = keras.Input((5,), dtype="int32", name="seen"), keras.Input((3,), dtype="int32", name="order")
        table = tpu.layers.ShardedEmbedding(IDS, WIDTH, optimizer=optimizer, name="items")
        found = table({"seen": seen, "order": order})
        sums = keras.layers.Concatenate()([keras.ops.sum(found["seen"], 1), keras.layers.Flatten()(found["order"])])
        bags = tpu.layers.ShardedEmbedding(IDS, WIDTH, "mean", keras.optimizers.Adagrad(0.1), name="bags")
        inputs = [seen, order]
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([sums, bags(seen)])))
        model.compile(keras.optimizers.SGD(0.01), "mse")
    for layer in (table, bags):
        layer.embeddings = START
    return model


def fit(model: Any, epochs: int, **settings: Any) -> Any:
    """Train on batches of which the cores divide none."""
    model.fit([SEEN, ORDER], TARGETS, batch_size=19, epochs=epochs, shuffle=False, verbose=0, **settings)
    return [np.asarray(model.get_layer(name).embeddings) for name in ("items", "bags")]


def in_fit(kind: str, folder: Path) -> Any:
    return fit(model_in(strategy_of(kind, 8), keras.optimizers.Adam(0.05)), 3)


def clipped_by_norm(kind: str, folder: Path) -> Any:
    return fit(model_in(strategy_of(kind, 4), keras.optimizers.Adagrad(0.05, clipnorm=0.1)), 2)


def in_a_layout(kind: str, folder: Path) -> Any:
    strategy = strategy_of(kind, 8, layout="fsdp", mesh={"data": 4, "model": 2})
    return fit(model_in(strategy, keras.optimizers.SGD(0.05, momentum=0.9)), 2)


def from_a_checkpoint(kind: str, folder: Path) -> Any:
    """Train two epochs on 8 cores and one more on 4."""
    path = folder / kind
    first = model_in(strategy_of(kind, 8), keras.optimizers.Adam(0.05))
    fit(first, 2, checkpoint_dir=path)
    tpu.shutdown_tpu_system()
    again = model_in(strategy_of(kind, 4), keras.optimizers.Adam(0.05))
    result = fit(again, 3, checkpoint_dir=path)
    whole = fit(model_in(strategy_of(kind, 4), keras.optimizers.Adam(0.05)), 3)
    np.testing.assert_allclose(result, whole, rtol=0, atol=1e-9)
    return result


def in_a_loop(kind: str, folder: Path) -> Any:
    strategy = strategy_of(kind, 8)
    table = tpu.embedding.TableConfig(IDS, WIDTH, name="items")
    with strategy.scope():
        embedding = tpu.embedding.TPUEmbedding(tpu.embedding.FeatureConfig(table), keras.optimizers.Adagrad(0.1))
    embedding.assign("items", START)

    def step(targets: Any) -> Any:
        def loss(vectors: Any) -> Any:
            return ((vectors.sum(1, keepdims=True) - targets) ** 2).sum()

        value, gradient = jax.value_and_grad(loss)(embedding.dequeue())
        embedding.apply_gradients(gradient)
        return value

    losses = []
    for first in range(0, 48, 16):
        embedding.enqueue(SEEN[first : first + 16])
        batch = next(iter(strategy.distribute_dataset([TARGETS[first : first + 16]])))
        losses.append(np.asarray(strategy.reduce("SUM", strategy.run(step, args=(batch,)))))
    return [np.stack(losses), np.asarray(embedding.embedding_tables["items"])]


def in_an_estimator(kind: str, folder: Path) -> Any:
    """Train two steps on 8 cores and one more on 4, and predict there."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        score = keras.layers.Dense(1, kernel_initializer="ones")(features["seen"])
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"score": score})
        loss = keras.ops.mean((score - labels) ** 2)
        optimizer = tpu.CrossShardOptimizer(keras.optimizers.SGD(0.05))
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    start: Any = START
    table = tpu.embedding.TableConfig(IDS, WIDTH, keras.initializers.Constant(start), name="items")
    spec = tpu.embedding.EmbeddingConfigSpec({"seen": tpu.embedding.FeatureConfig(table)}, "adagrad")
    estimator: Any = None
    for cores, steps in ((8, 2), (4, 3)):
        tpu.shutdown_tpu_system()
        config = tpu.RunConfig(cluster=tpu.TPUClusterResolver.from_address(Address(kind, cores)))
        settings = {"train_batch_size": 16, "predict_batch_size": 16, "embedding_config_spec": spec}
        estimator = tpu.TPUEstimator(model_fn, str(folder / f"{kind}_estimator"), config, **settings)
        estimator.train(lambda params: ({"seen": SEEN[:48]}, TARGETS[:48]), max_steps=steps)
    scores = [row["score"] for row in estimator.predict(lambda params: {"seen": SEEN})]
    names = "embedding_tables/items/embeddings", "dense/kernel"
    return [np.stack(scores), *map(estimator.get_variable_value, names)]


CASES = (in_fit, clipped_by_norm, in_a_layout, from_a_checkpoint, in_a_loop, in_an_estimator)


def shards(folder: Path) -> list[int]:
    """Return the rows of the table that each device holds after a step."""
    model = model_in(strategy_of("local", 8), keras.optimizers.Adam(0.05))
    fit(model, 1)
    value = model.get_layer("items").table_variables[0].value
    return [shard.data.shape[0] for shard in value.addressable_shards]


def large_shards() -> list[int]:
    """Return the rows that each device holds of tables, and of their slots, that Keras makes in its shards."""
    adagrad = keras.optimizers.Adagrad(0.1)
    with strategy_of("local", 8).scope():
        table = tpu.layers.ShardedEmbedding(2**17, 64, "mean", adagrad)
        table.build((None, 3))
        stacked = StackedTables([tpu.embedding.TableConfig(2**16, 64, name=name) for name in ("one", "two")], adagrad)
        stacked.build()
    variables = [*table.table_variables[:2], *stacked.table_variables[:2]]
    return [len(shard.data) for variable in variables for shard in variable.value.addressable_shards]


def main(folder: Path) -> None:
    jax.config.update("jax_enable_x64", True)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    differences = {}
    for case in CASES:
        results = [jax.tree.leaves(case(kind, folder)) for kind in ("virtual", "local")]
        differences[case.__name__] = max(float(np.abs(a - b).max()) for a, b in zip(*results, strict=True))
    print(json.dumps({"differences": differences, "rows": shards(folder), "large": large_shards()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
