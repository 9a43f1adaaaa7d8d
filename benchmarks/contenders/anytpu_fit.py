"""anytpu on its eight virtual cores: `fit` in the scope of `tpu.connect("v2-8")`; iris as a loop on the device."""

from __future__ import annotations

import functools

import anytpu as tpu  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np

from inputs import BATCH, rows
from models import fit
from worker import Train, serve


def in_scope(job: str, steps: int) -> Train:
    with tpu.connect("v2-8").scope():
        return fit(job, steps)


def iris(steps: int) -> Train:
    """Train one example at a time, all epochs in one call, as examples/03_iris.py does."""
    x, y = rows("iris", steps)
    random = np.random.default_rng(0)
    held = [tuple((0.1 * random.normal(size=size)).astype("float32") for size in ((5, 256), (3, 256)))]
    epochs = max(1, steps // len(x))
    tpu.connect("v2-8")

    def loss(weights, features, labels):
        logits = jax.nn.sigmoid(features @ weights[0]) @ weights[1].T
        return -(labels * jax.nn.log_softmax(logits)).sum()

    def train(weights, x, y):
        def step(i, carry):
            value, slopes = jax.value_and_grad(loss)(carry[0], x[i], y[i])
            return jax.tree.map(lambda w, s: w - 0.01 * s, carry[0], slopes), value

        def epoch(_, carry):
            return jax.lax.fori_loop(0, len(x), step, carry)

        return jax.lax.fori_loop(0, epochs, epoch, (weights, jnp.float32(0)))

    def run() -> float:
        held[0], value = tpu.rewrite(train, [held[0], x, y])
        return float(value)

    return run


if __name__ == "__main__":
    serve({"iris": iris, **{job: functools.partial(in_scope, job) for job in BATCH if job != "iris"}})
