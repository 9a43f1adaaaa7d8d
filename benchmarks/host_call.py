"""How long one call of `fit` keeps the host busy: what a short step on a TPU waits for.

A network so small that its step takes microseconds is fitted; nearly all of the time is the host's. Calls are counted,
and the time of a step inside a long call, the device's share, is taken off. The machine may be busy with other work:
each number is the median over rounds of thousands of calls, and the CPU time of the process stands beside the time of
the clock.

    python benchmarks/host_call.py [ROUNDS]    writes benchmarks/results/host_call.json
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import jax
import keras
import numpy as np

from anytpu.train.trainer import Trainer
from machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "host_call.json"
BATCH, STEPS = 8, 1500
DEFAULT = None


def model(strategy: Any, steps_per_execution: int | None) -> Any:
    with strategy.scope():
        network = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
        given: dict[str, Any] = {} if steps_per_execution is None else {"steps_per_execution": steps_per_execution}
        network.compile("sgd", "mse", **given)
    return network


class Calls:
    """Counts the calls of a train function."""

    count = 0


def count_calls() -> None:
    run = Trainer.run

    def counted(self: Any, mode: str, parts: Any, group: Any) -> Any:
        Calls.count += 1
        return run(self, mode, parts, group)

    Trainer.run = counted  # type: ignore[method-assign]


def fit(network: Any, feed: str, verbose: int) -> tuple[float, float, int]:
    """Return the wall seconds, the CPU seconds and the calls of one epoch."""
    x, y = np.ones((STEPS * BATCH, 8), "float32"), np.ones((STEPS * BATCH, 1), "float32")
    batches = ((x[:BATCH], y[:BATCH]) for _ in range(STEPS)) if feed == "batches" else None
    given = {"x": batches, "steps_per_epoch": STEPS} if batches else {"x": x, "y": y, "batch_size": BATCH}
    Calls.count = 0
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    network.fit(**given, epochs=1, verbose=verbose, **({} if batches else {"shuffle": False}))
    return time.perf_counter() - wall_s, time.process_time() - cpu_s, Calls.count


def measured(strategy: Any, feed: str, verbose: int, rounds: int) -> dict[str, Any]:
    one, auto = model(strategy, 1), model(strategy, DEFAULT)
    ones, autos = [], []
    for network in (one, auto):
        fit(network, feed, verbose)
        fit(network, feed, verbose)
    for _ in range(rounds):
        ones.append(fit(one, feed, verbose))
        autos.append(fit(auto, feed, verbose))
    wall_s, cpu_s = (statistics.median(run[part] / STEPS for run in ones) for part in (0, 1))
    long_wall_s, long_cpu_s = (statistics.median(run[part] / STEPS for run in autos) for part in (0, 1))
    calls = statistics.median(run[2] for run in autos)
    assert all(run[2] == STEPS for run in ones)
    return {
        "steps_per_execution=1": {"wall_us_per_call": 1e6 * wall_s, "cpu_us_per_call": 1e6 * cpu_s},
        "default": {
            "steps_per_call": STEPS / calls,
            "wall_us_per_step": 1e6 * long_wall_s,
            "cpu_us_per_step": 1e6 * long_cpu_s,
        },
        "host_cpu_us_per_call": 1e6 * (cpu_s - long_cpu_s) / (1 - calls / STEPS),
        "host_wall_us_per_call": 1e6 * (wall_s - long_wall_s) / (1 - calls / STEPS),
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    count_calls()
    load = os.getloadavg()[0]
    strategy = tpu.connect("virtual", cores=1)
    found = {
        f"{feed}, verbose={verbose}": measured(strategy, feed, verbose, rounds)
        for feed, verbose in (("rows", 0), ("rows", 1), ("batches", 0))
    }
    machine = f"{cpu_name()}, {os.cpu_count()} cores, {platform.system()}"
    record = {
        "machine": machine,
        "load_before": load,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "keras": keras.__version__,
        "rounds": rounds,
        "calls_per_round": STEPS,
        "jobs": found,
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
