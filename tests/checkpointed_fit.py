"""The program of test_fit_checkpoints.py: a fit with checkpoints, as a process of its own, which may be killed.

Usage: checkpointed_fit.py FOLDER VARIANT [--kill-after STEPS] [--wait-at POINT] [--every STEPS]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import time
from typing import Any

import anytpu as tpu  # isort: skip
import jax
import keras
import numpy as np

from anytpu import _env

VARIANTS = ("arrays", "silent", "dataset", "stream", "spanning", "fsdp", "generator", "sequences", "outside")
EPOCHS = 4


class Counts(keras.callbacks.Callback):
    """A user's callback with plain attributes, called after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.losses, self.drawn = 0, [], []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.drawn.append((random.random(), float(np.random.rand())))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self.losses.append(logs["loss"])


class Stateful(keras.callbacks.Callback):
    """A user's callback with get_state and set_state, whose other attributes a checkpoint cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: Any = iter(range(100))
        self.last = -1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.last = next(self.epochs)

    def get_state(self) -> dict[str, Any]:
        return {"last": self.last}

    def set_state(self, state: dict[str, Any]) -> None:
        self.last = state["last"]
        self.epochs = iter(range(self.last + 1, 100))


class Ended(Exception):
    """Ends a fit in the middle, like a fault of the program."""


class Ending(keras.callbacks.Callback):
    """Ends the fit after some steps of this process by kill -9 or an error, or waits at a point to be ended."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.kill_after, self.wait_at, self.end_after = options.kill_after, options.wait_at, options.end_after
        self.taken = iter(range(1, 10**6))

    def _wait(self, point: str) -> None:
        if self.wait_at == point:
            print("waiting", flush=True)
            time.sleep(60)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        taken = next(self.taken)
        if taken == self.kill_after:
            # On a slow disk, the thread that writes the first checkpoint may be at work still.
            while (file := _env.step_file()) is not None and not file.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        if taken == self.end_after:
            raise Ended
        if batch == 2 and self.wait_at == "input":
            print("waiting", flush=True)
        if batch == 3:
            self._wait("callback")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._wait("evaluation")


class Waits(keras.layers.Layer):
    """Waits when the step of the last batch, which has one row, is traced: a long compilation."""

    def call(self, inputs: Any) -> Any:
        if inputs.shape[0] == 1 and isinstance(inputs, jax.core.Tracer):
            print("waiting", flush=True)
            time.sleep(60)
        return inputs


OUTSIDE: dict[str, Any] = {}
"""Objects with variables of which no model knows, made with the newest model."""


class Outside(keras.layers.Layer):
    """Counts its calls, draws noise and takes a mean, in training and in evaluation, with `OUTSIDE`."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        OUTSIDE["count"].assign_add(1.0)
        OUTSIDE["mean"].update_state(inputs)
        return inputs + keras.random.normal(inputs.shape, seed=OUTSIDE["noise"]) if training else inputs


def model_of(variant: str, wait_at: str = "") -> Any:
    keras.utils.set_random_seed(7)
    strategy = tpu.connect("v2-8" if variant == "fsdp" else "virtual", **_settings(variant))
    layers = keras.layers
    with strategy.scope():
        if variant == "sequences":
            body = [layers.Embedding(20, 4), layers.GlobalAveragePooling1D()]
        else:
            body = [layers.Dense(16, "relu"), layers.BatchNormalization()]
        body += [Waits()] if wait_at == "compilation" else []
        OUTSIDE.update(count=keras.Variable(0.0), noise=keras.random.SeedGenerator(5), mean=keras.metrics.Mean())
        body += [Outside()] if variant == "outside" else []
        model = keras.Sequential([*body, layers.Dropout(0.5), layers.Dense(3)])
        decays = variant in ("dataset", "silent")
        rate: Any = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9) if decays else 0.01
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def _settings(variant: str) -> dict[str, Any]:
    return {"layout": "fsdp"} if variant == "fsdp" else {"cores": 2}


def arguments(variant: str, wait_at: str) -> dict[str, Any]:
    """Return the data of a fit, and the arguments that belong to it."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(72, 8)).astype("float32"), draw.integers(0, 3, 72)

    def batches(rows: int = 8) -> Any:
        for start in range(0, 56, rows):
            if wait_at == "input" and start == 24:
                time.sleep(60)  # In a thread that reads ahead; the callback says when the steps before are done.
            yield x[start : start + rows], y[start : start + rows]

    def endless() -> Any:
        while True:
            yield from batches()

    rows = tpu.pipeline.Dataset.from_arrays((x[:56], y[:56]))
    held_out = tpu.pipeline.Dataset.from_arrays((x[56:], y[56:])).shuffle(seed=3).batch(4)
    if variant == "dataset":
        return {
            "x": rows.shuffle(seed=5).batch(8),
            "validation_data": held_out,
            "class_weight": {0: 1.0, 1: 2.0, 2: 1.0},
        }
    if variant == "stream":
        return {"x": tpu.pipeline.Dataset.from_generator(batches), "validation_data": held_out}
    if variant == "spanning":
        return {
            "x": rows.shuffle(seed=5).repeat().batch(8),
            "steps_per_epoch": 5,
            "validation_data": held_out,
            "validation_steps": 3,  # of 4: each evaluation begins a new pass
        }
    if variant == "generator":
        return {"x": endless(), "steps_per_epoch": 7}
    if variant == "sequences":
        x = draw.integers(1, 20, (72, 6))
    return {"x": x, "y": y, "batch_size": 8, "validation_split": 0.2, "class_weight": {0: 1.0, 1: 2.0, 2: 1.0}}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train, and return digests of everything that a resumed run must repeat."""
    model = model_of(options.variant, options.wait_at)
    counts, stateful = Counts(), Stateful()
    stops = keras.callbacks.EarlyStopping("loss", patience=2, restore_best_weights=True)
    log = keras.callbacks.CSVLogger(f"{options.folder}.csv")
    best = keras.callbacks.ModelCheckpoint(
        f"{options.folder}.weights.h5", "loss", save_best_only=True, save_weights_only=True
    )
    callbacks: list[Any] = [stateful, stops, log, best]
    if options.variant not in ("dataset", "silent"):
        callbacks.append(keras.callbacks.ReduceLROnPlateau("loss", patience=1))
    if options.variant != "silent":
        callbacks += [counts, Ending(options)]
    saved = tpu.Checkpointer(options.folder, every_steps=options.every, keep=2, best="loss")
    try:
        history = model.fit(
            **arguments(options.variant, options.wait_at),
            epochs=options.epochs,
            verbose=0,
            callbacks=callbacks,
            checkpoint_dir=saved,
        )
    finally:
        if log.csv_file is not None:
            log.csv_file.close()  # Keras leaves it open after an error.
    outside = [OUTSIDE["count"], OUTSIDE["noise"].state, *OUTSIDE["mean"].variables]
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables, *outside]
    with open(f"{options.folder}.csv", "rb") as file:
        lines = file.read()
    return {
        "variables": hashlib.md5(b"".join(np.asarray(v.value).tobytes() for v in variables)).hexdigest(),
        "history": history.history,
        "epochs": history.epoch,
        "csv": hashlib.md5(lines).hexdigest(),
        "callbacks": [counts.steps, stateful.last, stops.wait, stops.best, best.best],
        "seen by a callback": [counts.losses, counts.drawn],
        "draws": [random.random(), float(np.random.rand()), float(keras.random.uniform(()))],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--kill-after", type=int, default=0)
    parser.add_argument("--end-after", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--wait-at", default="")
    parser.add_argument("--every", type=int, default=2)
    result = run(parser.parse_args())
    print(json.dumps(result, sort_keys=True))
    sys.stdout.flush()
