"""Rows that a mesh of two axes does not divide: lookups, counts and sums by index, in Keras and in JAX.

The right values are those of plain Keras and of jax.numpy on one device.
"""

import os

from case import check, check_equal, finish

os.environ |= {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PJRT_NPROC": "16"}
import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import PartitionSpec

import anytpu as tpu

ids, labels = np.arange(90 * 3).reshape(90, 3) % 19 + 1, np.arange(90) % 8


def model_of():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(8, name="d")]
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers])
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fitted(model):
    model.fit(ids, labels, batch_size=20, epochs=3, shuffle=False, verbose=0)
    return model


plain = fitted(model_of())
for mesh in ({"data": 4, "model": 2}, {"data": 2, "model": 4}):
    resolver = tpu.TPUClusterResolver.from_address(tpu.system.Address("local", 8))
    strategy = tpu.TPUStrategy(resolver, layout={"d/kernel": PartitionSpec(None, "model")}, mesh=mesh)
    with strategy.scope():
        model = model_of()
    fitted(model)
    for name, right, found in zip(("table", "kernel", "bias"), plain.get_weights(), model.get_weights(), strict=True):
        check(f"{mesh} {name}", right, found)
    check(f"{mesh} predict 11 rows", plain.predict(ids[:11], verbose=0), model.predict(ids[:11], verbose=0))
    check(f"{mesh} evaluate", plain.evaluate(ids, labels, 11, verbose=0), model.evaluate(ids, labels, 11, verbose=0))

    def count(state, batch):
        sums = jax.ops.segment_sum(jnp.sin(batch * 1.0), batch, 20)
        # All rows but the first: the mesh does not divide these, though it divides the batch.
        return {"d/kernel": state["d/kernel"], "n": state["n"].at[batch[1:]].add(1.0)}, {"sums": sums}

    for rows in (9, 10, 11, 12):
        batch, state = ids[:rows, 0], {"d/kernel": np.zeros((4, 8), "float32"), "n": np.zeros(20, "float32")}
        found, outputs = strategy.run_steps(count, iter([batch]), steps=1, state=state)
        right = np.bincount(batch[1:], minlength=20)
        check(f"{mesh} counts of {rows} rows", right, found["n"])
        right = np.bincount(batch, np.sin(batch), minlength=20)
        check(f"{mesh} sums of {rows} rows", right, outputs["sums"])

report = tpu.check(model, batch_size=10)
check_equal("check of 10 rows", (True, 10), (report.agrees, report.rows))
finish()
