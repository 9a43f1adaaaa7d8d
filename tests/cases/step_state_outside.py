"""State that a step assigns outside of Keras's four lists is kept: by fit, evaluate, predict and the calls on a batch.

Right: 5 batches are counted as 5, the mean is that of all rows of the epoch, and each step draws its own noise. The
numbers follow from the data, and TensorFlow gives them too.
"""

import anytpu as tpu  # isort: skip
import keras
import numpy as np
from case import check, finish

STATE = {}


class Watch(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.level = keras.metrics.Mean(name="level")

    def call(self, x, training=False):
        STATE["count"].assign_add(1.0)
        self.level.update_state(keras.ops.mean(x, axis=1))
        return x + keras.random.normal(keras.ops.shape(x), seed=STATE["noise"]) if training else x


class Steps(keras.Model):
    """A train_step and a test_step in JAX's form, which count beside the lists of their state."""

    def __init__(self):
        super().__init__()
        self.watch, self.dense = Watch(), keras.layers.Dense(1)
        self.kl = keras.metrics.Mean(name="kl")

    def call(self, x, training=False):
        return self.dense(self.watch(x, training=training))

    def train_step(self, state, data):
        STATE["steps"].assign_add(1.0)
        self.kl.update_state(keras.ops.mean(data[0]))
        logs, state = super().train_step(state, data)
        return {**logs, "kl": self.kl.result()}, state


def model_of(kind, **options):
    STATE.update(count=keras.Variable(0.0), steps=keras.Variable(0.0), noise=keras.random.SeedGenerator(5))
    with tpu.connect("v2-8", **options).scope():
        keras.utils.set_random_seed(1)
        model = kind() if kind is Steps else keras.Sequential([keras.Input((8,)), Watch(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse", steps_per_execution=3 if options else 1)
    return model


x = np.arange(320, dtype="float32").reshape(40, 8)
y = np.zeros((40, 1), "float32")
stream = tpu.pipeline.Dataset.from_arrays((x, y)).batch(8)
for name, kind, options in (("plain", Watch, {}), ("fsdp", Watch, {"layout": "fsdp"}), ("own step", Steps, {})):
    model = model_of(kind, **options)
    losses = []

    def add(batch, logs, losses=losses):
        losses.append(logs["loss"])

    note = keras.callbacks.LambdaCallback(on_train_batch_end=add)
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[note]).history
    check(f"{name}: count after fit", 10.0, STATE["count"].value)
    check(f"{name}: level of each epoch", [x.mean()] * 2, history["level"])
    check(f"{name}: noise differs", len(losses), len({round(float(loss), 4) for loss in losses}))
    model.fit(stream, verbose=0)
    check(f"{name}: count after a stream", 15.0, STATE["count"].value)
    check(f"{name}: evaluate", x.mean(), model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)["level"])
    model.predict(x, batch_size=16, verbose=0)
    check(f"{name}: count after evaluate and predict", 23.0, STATE["count"].value)
    STATE["count"].assign(1.0)
    logs = model.train_on_batch(x[:8], y[:8], return_dict=True)
    check(f"{name}: train_on_batch", [x[:8].mean(), 2.0], [logs["level"], STATE["count"].value])
    model.test_on_batch(x[:8], y[:8])
    model.predict_on_batch(x[:8])
    check(f"{name}: count after the calls on a batch", 4.0, STATE["count"].value)
    if kind is Steps:
        check("own step: its counter and its mean", [16.0, x[:8].mean()], [STATE["steps"].value, logs["kl"]])
finish()
