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

from anytpu.program.program import REPLICATED, Program, spec_of


def in_scope(job: str, steps: int) -> Train:
    with tpu.connect("v2-8").scope():
        return fit(job, steps)


def iris(steps: int) -> Train:
    """Train one example at a time, all steps in one call."""
    x, y = rows("iris", steps)
    random = np.random.default_rng(0)
    weights = tuple((0.1 * random.normal(size=size)).astype("float32") for size in ((5, 256), (256, 3)))

    def loss(weights, features, labels):
        logits = jax.nn.sigmoid(features @ weights[0]) @ weights[1]
        return -(labels * jax.nn.log_softmax(logits)).sum()

    def every_step(weights, batch):
        def step(i, carry):
            features, labels = (jax.lax.dynamic_index_in_dim(one, i % len(x), 0, keepdims=False) for one in batch)
            value, slopes = jax.value_and_grad(loss)(carry[0], features, labels)
            return jax.tree.map(lambda w, s: w - 0.01 * s, carry[0], slopes), value

        return jax.lax.fori_loop(0, steps, step, (weights, jnp.float32(0)))

    program = Program("iris", every_step, spec_of(weights), spec_of((x, y)), REPLICATED)
    strategy = tpu.connect("v2-8")
    run, backend = strategy.compile(program), strategy.backend
    held = [backend.put(weights, REPLICATED)]
    batch = backend.put((x, y), REPLICATED)

    def train() -> float:
        held[0], value = run.step(held[0], batch)
        return float(backend.get(value))

    return train


if __name__ == "__main__":
    serve({"iris": iris, **{job: functools.partial(in_scope, job) for job in BATCH if job != "iris"}})
