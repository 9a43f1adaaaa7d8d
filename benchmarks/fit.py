"""How fast `fit` and `run` are, beside plain Keras and beside a scan written by hand.

    python benchmarks/fit.py [--jobs mlp32,...] [--rounds 7] [--gpu] [--output FILE]

Variants, alternated in one process round by round; a ratio is that of medians:
    keras    (a) plain Keras 3 on JAX, compiled outside any scope
    scan     (b) the limit: `lax.scan` over an epoch on the device, with the same loss, metric, optimizer and shuffle
    fit 1, fit 8    (c) Keras's fit in the scope of a strategy, on 1 core and on 8 virtual cores
    run 1, run 8    (c) a custom step through `strategy.run`, one step a call
The first step is timed in processes of its own, from before `fit` to after its first step.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import layers

from machine import cpu_name


@dataclasses.dataclass(frozen=True)
class Job:
    """A model, its data and its batch size. The last layer gives logits; binary when there is one."""

    make: Callable[[], keras.Model]
    data: Callable[[], tuple[np.ndarray, np.ndarray]]
    batch: int


def mlp() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((64,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def cnn() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def augmented() -> keras.Model:
    """Return the small convnet behind three layers whose `supports_jit` is False: Keras does not compile it."""
    augmentation = [layers.RandomRotation(0.05), layers.RandomZoom(0.1), layers.RandomTranslation(0.1, 0.1)]
    return keras.Sequential([layers.Input((8, 8, 1)), *augmentation, *cnn().layers])


def augmented_jit() -> keras.Model:
    """Return the same model with `supports_jit` set by hand: Keras compiles it."""
    model = augmented()
    for layer in model.layers:
        layer.supports_jit = True
    return model


def lstm() -> keras.Model:
    return keras.Sequential(
        [layers.Input((250,), dtype="int32"), layers.Embedding(15000, 32), layers.LSTM(100), layers.Dense(1)]
    )


def digits(times: int) -> tuple[np.ndarray, np.ndarray]:
    (x, y), _ = tpu.pipeline.digits()
    return np.tile(x, (times, 1, 1, 1)), np.tile(y, times)


def flat_digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = digits(10)
    return x.reshape(len(x), 64), y


def reviews() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, 15000, (384, 250), dtype=np.int32), random.integers(0, 2, 384).astype(np.int32)


JOBS = {
    "mlp32": Job(mlp, flat_digits, 32),
    "mlp200": Job(mlp, flat_digits, 200),
    "cnn64": Job(cnn, lambda: digits(1), 64),
    "lstm64": Job(lstm, reviews, 64),
    "augmented64": Job(augmented, lambda: digits(1), 64),
    "augmented64_jit": Job(augmented_jit, lambda: digits(1), 64),
}


def losses(job: Job) -> tuple[Any, Any, str]:
    """Return the loss, the per-row loss function and the metric's name of a job."""
    if job.make is lstm:
        return (
            keras.losses.BinaryCrossentropy(from_logits=True),
            lambda y, p: keras.losses.binary_crossentropy(y[:, None], p, from_logits=True),
            "binary_accuracy",
        )
    return (
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        lambda y, p: keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True),
        "sparse_categorical_accuracy",
    )


def compiled(job: Job) -> keras.Model:
    model = job.make()
    loss, _, metric = losses(job)
    model.compile("adam", loss, metrics=[metric])
    return model


def keras_variant(job: Job, strategy: Any) -> Callable[[int], None]:
    x, y = job.data()
    with strategy.scope():
        model = compiled(job)
    return lambda epochs: model.fit(x, y, batch_size=job.batch, epochs=epochs, verbose=0)


def scan_variant(job: Job, strategy: Any) -> Callable[[int], None]:
    """Scan over the full batches of an epoch on the device; a last partial batch is one more step."""
    x, y = (jnp.asarray(part) for part in job.data())
    model, optimizer = job.make(), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    _, row_loss, metric = losses(job)
    steps = len(x) // job.batch

    def correct(y: Any, logits: Any) -> Any:
        return (logits[:, 0] > 0.5) == y if metric == "binary_accuracy" else logits.argmax(-1) == y

    def step(state: Any, rows: Any) -> Any:
        trainable, fixed, slots, total, right, count = state

        def loss_of(trainable: Any) -> Any:
            logits, new_fixed = model.stateless_call(trainable, fixed, x[rows], training=True)
            return row_loss(y[rows], logits).mean(), (logits, new_fixed)

        (loss, (logits, new_fixed)), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        sums = total + loss * len(rows), right + correct(y[rows], logits).sum(), count + len(rows)
        return (trainable, new_fixed, slots, *sums), None

    full = jax.jit(lambda state, rows: jax.lax.scan(step, state, rows)[0], donate_argnums=0)
    last = jax.jit(lambda state, rows: step(state, rows)[0], donate_argnums=0)
    parts = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    held = [[[jnp.array(variable.value) for variable in part] for part in parts]]

    def run(epochs: int) -> None:
        for _ in range(epochs):
            order = np.random.permutation(len(x)).astype(np.int32)
            state = (*held[0], jnp.float32(0), jnp.int32(0), jnp.int32(0))
            state = full(state, order[: steps * job.batch].reshape(steps, job.batch))
            if len(order) % job.batch:
                state = last(state, order[steps * job.batch :])
            held[0] = list(state[:3])
            [float(total) for total in state[3:]]

    return run


def run_variant(job: Job, strategy: Any) -> Callable[[int], None]:
    """Run a custom step, one a call, over the full batches of an epoch that the cores divide."""
    x, y = job.data()
    _, row_loss, metric = losses(job)
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        model, optimizer = job.make(), keras.optimizers.Adam()
        loss_metric, accuracy = keras.metrics.Mean("loss"), keras.metrics.get(metric)
    if callable(accuracy) and not isinstance(accuracy, keras.metrics.Metric):
        with strategy.scope():
            accuracy = keras.metrics.MeanMetricWrapper(accuracy, name=metric)

    def step_fn(x: Any, y: Any) -> None:
        def loss_fn(x: Any, y: Any) -> Any:
            logits = model(x, training=True)
            return tpu.compute_average_loss(row_loss(y, logits), global_batch_size=job.batch), logits

        (loss, logits), gradients = tpu.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)(x, y)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        loss_metric.update_state(loss * replicas)
        accuracy.update_state(y[:, None] if metric == "binary_accuracy" else y, logits)

    def split(rows: np.ndarray) -> Any:
        return tpu.PerReplica(np.split(rows, replicas)) if replicas > 1 else rows

    def run(epochs: int) -> None:
        for _ in range(epochs):
            order = np.random.permutation(len(x))
            for first in range(0, len(x) - job.batch + 1, job.batch):
                rows = order[first : first + job.batch]
                strategy.run(step_fn, args=(split(x[rows]), split(y[rows])))
            float(loss_metric.result()), float(accuracy.result())
            loss_metric.reset_state(), accuracy.reset_state()

    return run


def variants(gpu: bool) -> dict[str, tuple[Callable, Any]]:
    plain = tpu.get_strategy()
    one = tpu.connect("local") if gpu else tpu.connect("virtual", cores=1)
    eight = tpu.connect("v2-8")
    made = {
        "keras": (keras_variant, plain),
        "scan": (scan_variant, plain),
        "fit 1": (keras_variant, one),
        "run 1": (run_variant, one),
    }
    return made if gpu else {**made, "fit 8": (keras_variant, eight), "run 8": (run_variant, eight)}


def measure(job: Job, rounds: int, seconds: float, gpu: bool) -> dict[str, dict[str, float]]:
    """Alternate the variants; return the median, minimum and maximum of microseconds a step."""
    runs, steps = {}, -(-len(job.data()[0]) // job.batch)
    for name, (make, strategy) in variants(gpu).items():
        keras.utils.set_random_seed(0)
        runs[name] = make(job, strategy)
        runs[name](2)
    began = time.perf_counter()
    runs["keras"](1)
    epochs = max(1, round(seconds / (time.perf_counter() - began)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run(epochs)
            times[name].append((time.perf_counter() - began) / (epochs * steps) * 1e6)
    return {
        name: {"median_us": statistics.median(ts), "min_us": min(ts), "max_us": max(ts)} for name, ts in times.items()
    }


FIRST = """
import time, anytpu as tpu, sys
sys.argv = ["fit.py"]
sys.path.insert(0, {folder!r})
import fit, keras, jax
job = fit.JOBS[{job!r}]
x, y = job.data()
strategy = tpu.connect("v2-8") if {ours} else tpu.get_strategy()
jax.numpy.zeros(1).block_until_ready()
began = time.perf_counter()
with strategy.scope():
    model = fit.compiled(job)
model.fit(x[:job.batch], y[:job.batch], batch_size=job.batch, verbose=0)
print(time.perf_counter() - began)
"""


def first_step(job: str, rounds: int) -> dict[str, float]:
    """Return the median seconds from before the model is built to after its first step, alternated."""
    times: dict[str, list[float]] = {"keras": [], "ours": []}
    for _ in range(rounds):
        for name in times:
            code = FIRST.format(folder=str(Path(__file__).parent), job=job, ours=name == "ours")
            out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            times[name].append(float(out.split()[-1]))
    return {f"{name}_s": statistics.median(ts) for name, ts in times.items()}


def machine() -> str:
    versions = f"Python {platform.python_version()}, jax {jax.__version__}, keras {keras.__version__}"
    return f"{cpu_name()}, {os.cpu_count()} cores, {platform.system()}, {versions}"


def table(job: str, result: dict[str, dict[str, float]]) -> str:
    keras_us, scan_us = result["keras"]["median_us"], result["scan"]["median_us"]
    rows = [f"{job:8} {'variant':7} {'us/step':>10} {'min':>10} {'max':>10} {'x keras':>8} {'x scan':>8}"]
    for name, variant in result.items():
        us = variant["median_us"]
        spread = f"{variant['min_us']:10.0f} {variant['max_us']:10.0f}"
        rows.append(f"{'':8} {name:7} {us:10.0f} {spread} {keras_us / us:8.2f} {scan_us / us:8.2f}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one variant's turn")
    parser.add_argument("--first", type=int, default=3, help="rounds of the first-step measurement; 0 leaves it out")
    parser.add_argument("--gpu", action="store_true", help="compare on this machine's GPU")
    parser.add_argument("--output", help="write the figures as JSON here")
    options = parser.parse_args()
    record: dict[str, Any] = {"machine": machine(), "device": str(jax.devices()[0]), "jobs": {}}
    for name in options.jobs.split(","):
        result = measure(JOBS[name], options.rounds, options.seconds, options.gpu)
        print(table(name, result), flush=True)
        record["jobs"][name] = result
        if options.first:
            result["first step"] = first_step(name, options.first)
            ours_s, keras_s = (result["first step"][f"{contender}_s"] for contender in ("ours", "keras"))
            print(f"{'':8} first step: ours {ours_s:.2f} s, keras {keras_s:.2f} s, ratio {ours_s / keras_s:.2f}")
    if options.output:
        Path(options.output).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
