"""A fit with checkpoints on several processes: `anytpu launch -n 2 hosts_checkpoints.py FOLDER RESULT [STEP SIGNAL]`.

With STEP, process 1 gets the signal after that step. SEED in the environment sets the seed. Each process writes its
weights and the number of its steps to RESULT.INDEX.npz at the end. With COUNTS=1 the model is linear in float64, and
counts how often it has trained on each example.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import jax
import keras
import numpy as np

import anytpu as tpu


class SendsSignal(keras.callbacks.Callback):
    """Sends a signal to process 1 after a step."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__()
        self._step, self._number = step, number

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model: Any = self.model
        if int(model.optimizer.iterations) == self._step and jax.process_index() == 1:
            os.kill(os.getpid(), self._number)


class CountsExamples(keras.layers.Layer):
    """Passes its inputs on, and counts in float64 how often each example has been in a training batch.

    The first feature is the index of the example.
    """

    def __init__(self, examples: int) -> None:
        super().__init__(dtype="float64")
        self.counts: Any = self.add_weight(shape=(examples,), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            indices = keras.ops.cast(x[:, 0], "int32")
            rows = keras.ops.one_hot(indices, self.counts.shape[0], dtype="float64")
            self.counts.assign(self.counts + keras.ops.sum(rows, axis=0))
        return x[:, 1:]


def main(folder: str, result: str, step: int = 0, number: int = 0) -> None:
    """Train, and save the weights."""
    strategy = tpu.connect()
    if "SEED" in os.environ:
        keras.utils.set_random_seed(int(os.environ["SEED"]))
    counts = "COUNTS" in os.environ
    x, y = np.random.default_rng(0).normal(size=(40, 4)).astype("float32"), np.arange(40) % 3
    if counts:
        x[:, 0] = np.arange(40)
        keras.config.set_floatx("float64")
    with strategy.scope():
        first: Any = CountsExamples(len(x)) if counts else keras.layers.Dropout(0.2)
        model: Any = keras.Sequential([keras.Input((4,)), first, keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, 4, epochs=4, verbose=2, checkpoint_dir=folder, callbacks=[SendsSignal(step, number)])
    weights = [np.ravel(weight) for weight in model.get_weights()]
    np.savez(
        f"{result}.{jax.process_index()}.npz", weights=np.concatenate(weights), steps=int(model.optimizer.iterations)
    )


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
