"""A fit with checkpoints on several processes: `anytpu launch -n 2 tests/hosts_checkpoints.py FOLDER RESULT [STEP]`.

With STEP, process 1 gets a SIGTERM after that step. SEED in the environment sets the seed. Each process writes its
weights and the number of its steps to RESULT.INDEX.npz at the end.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import jax
import keras
import numpy as np

import anytpu as tpu


class Terminates(keras.callbacks.Callback):
    """Sends SIGTERM to this process after a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model: Any = self.model
        if int(model.optimizer.iterations) == self._step and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def main(folder: str, result: str, step: int) -> None:
    """Train, and save the weights."""
    strategy = tpu.connect()
    if "SEED" in os.environ:
        keras.utils.set_random_seed(int(os.environ["SEED"]))
    x, y = np.random.default_rng(0).normal(size=(40, 4)).astype("float32"), np.arange(40) % 3
    with strategy.scope():
        model: Any = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.2), keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, 4, epochs=4, verbose=2, checkpoint_dir=folder, callbacks=[Terminates(step)])
    weights = [np.ravel(weight) for weight in model.get_weights()]
    np.savez(
        f"{result}.{jax.process_index()}.npz", weights=np.concatenate(weights), steps=int(model.optimizer.iterations)
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
