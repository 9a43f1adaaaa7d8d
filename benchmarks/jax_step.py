"""A JAX training step in `strategy.run`, beside the same step under plain `jax.jit`.

A Dense layer of 4096 x 1024 is trained on 64 rows. Its gradient has 16 MB, so one copy of it for each of the 8 virtual
cores is seen at once. The contenders take turns; the ratio is that of the medians.

    python benchmarks/jax_step.py [ROUNDS]    writes benchmarks/results/jax_step.json

    jit          jax.jit of jax.value_and_grad, the parameters handed from step to step
    run          the parameters that `run` returned go into the next `run`; gradients by tpu.value_and_grad
    run_steps    ten steps a call, the parameters are `state`; gradients by tpu.value_and_grad
    own          as run, but with jax.value_and_grad and pmean, as code for jax.pmap has it
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np

from machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "jax_step.json"
CORES, ROWS, STEPS, LOOP = 8, 64, 10, 10


def loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def updated(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


@jax.jit
def plain(params: Any, x: Any, y: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return updated(params, gradients), value


def step(params: Any, batch: Any) -> Any:
    share = lambda params, *batch: loss(params, *batch) / CORES  # noqa: E731
    value, gradients = tpu.value_and_grad(share, params)(*batch)
    return updated(params, gradients), value


def own(params: Any, batch: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(params, *batch)
    return updated(params, jax.lax.pmean(gradients, "replica")), value


def contenders() -> dict[str, Callable[[], Any]]:
    """Return, by name, what runs STEPS steps and waits for them."""
    draw = np.random.default_rng(0)
    params = {"w": jnp.asarray(draw.normal(size=(4096, 1024), scale=0.01), "float32"), "b": jnp.zeros(1024)}
    x, y = draw.normal(size=(ROWS, 4096)).astype("float32"), draw.normal(size=(ROWS, 1024)).astype("float32")
    strategy = tpu.connect("virtual", cores=CORES)
    batch = next(iter(strategy.distribute_dataset([(x, y)])))
    state = dict.fromkeys(("jit", "run", "run_steps", "own"), params)

    def with_jit() -> None:
        for _ in range(STEPS):
            state["jit"], value = plain(state["jit"], x, y)
        float(value)

    def with_run(name: str, fn: Callable) -> None:
        for _ in range(STEPS):
            state[name], value = strategy.run(fn, args=(state[name], batch))
        float(strategy.reduce("SUM", value, axis=None))

    def with_run_steps() -> None:
        for _ in range(STEPS // LOOP):
            state["run_steps"], value = strategy.run_steps(step, iter([batch] * LOOP), LOOP, state=state["run_steps"])
        float(strategy.reduce("SUM", value, axis=None))

    return {
        "jit": with_jit,
        "run": lambda: with_run("run", step),
        "run_steps": with_run_steps,
        "own": lambda: with_run("own", own),
    }


def main(rounds: int) -> None:
    warnings.simplefilter("ignore")
    runs = contenders()
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    load = os.getloadavg()[0]
    for _ in range(rounds):
        for name, run in runs.items():
            begun_s = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - begun_s) / STEPS)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    found = {
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "jax": jax.__version__,
        },
        "load_before": round(load, 2),
        "rounds": rounds,
        "virtual_cores": CORES,
        "step_s": medians,
        "times_of_jit": {name: round(seconds / medians["jit"], 2) for name, seconds in medians.items()},
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
