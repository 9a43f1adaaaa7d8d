"""keras-rs's `DistributedEmbedding` in a scope, beside its own dense form."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu

keras_rs: Any = pytest.importorskip("keras_rs")
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

ROWS = 16


def model(placement: str = "auto") -> tuple[Any, Any]:
    common = {"embedding_dim": 4, "placement": placement}
    items = keras_rs.layers.TableConfig(
        name="items", vocabulary_size=50, optimizer=keras.optimizers.Adagrad(0.1), combiner="sum", **common
    )
    users = keras_rs.layers.TableConfig(
        name="users", vocabulary_size=30, optimizer=keras.optimizers.Adagrad(0.1), **common
    )
    sizes = {"liked": (items, 3), "seen": (items, 2), "user": (users, 2)}
    features = {
        name: keras_rs.layers.FeatureConfig(name, table, (ROWS, size), (ROWS, 4))
        for name, (table, size) in sizes.items()
    }
    inputs = {name: keras.Input((size,), ROWS, dtype="int32", name=name) for name, (_, size) in sizes.items()}
    layer = keras_rs.layers.DistributedEmbedding(features)
    result = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Concatenate()(list(layer(inputs).values())))
    made = keras.Model(inputs, result)
    made.compile(keras.optimizers.Adagrad(0.1), "mse")
    return made, layer


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")  # Keras 3.15 with JAX 0.12.
def test_equal_to_dense_tables_with_the_same_optimizer():
    dense, dense_layer = model()
    start = {name: np.array(value) for name, value in dense_layer.get_embedding_tables().items()}
    strategy = tpu.connect("virtual", cores=4)
    with strategy.scope():
        ours, layer = model()
    assert "embeddings_accumulator" in " ".join(variable.path for variable in ours.trainable_variables)
    for table in vars(layer)["_anytpu_tables"].values():
        layer._anytpu_stacks[0].assign_rows(table, start[table.name])
    rng = np.random.default_rng(0)
    x = {
        "liked": rng.integers(0, 50, (64, 3)),
        "seen": rng.integers(0, 50, (64, 2)),
        "user": rng.integers(0, 30, (64, 2)),
    }
    y = rng.normal(size=(64, 1)).astype("float32")
    settings = {"batch_size": ROWS, "epochs": 2, "shuffle": False, "verbose": 0}
    histories = [model.fit(x, y, **settings).history["loss"] for model in (dense, ours)]
    np.testing.assert_allclose(*histories, rtol=1e-5)
    for name, table in layer.get_embedding_tables().items():
        np.testing.assert_allclose(table, dense_layer.get_embedding_tables()[name], rtol=0, atol=1e-5)


def test_the_placement_default_device_stays_dense():
    with tpu.connect("virtual", cores=4).scope():
        made, _ = model("default_device")
    assert [variable.path.split("/")[-1] for variable in made.trainable_variables] == [
        *["embeddings"] * 2,
        "kernel",
        "bias",
    ]
