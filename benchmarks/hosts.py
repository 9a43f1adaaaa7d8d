"""Several processes on this machine beside one: the speed of fit, the time of the all-reduce, the cost of agreement.

Processes share the machine's cores, so more processes cannot be faster. A process of one device is pinned to a core.
Strong scaling trains one global batch with more processes. The ratio to one process shows the cost of the collectives
and of the agreement. Weak scaling gives each process the same number of rows. The time of the all-reduce is that of
exchanges alone, of as many numbers as the model has gradients; it does not include waiting for a slower process.

    python benchmarks/hosts.py [ROUNDS]    writes benchmarks/results/hosts.json
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "hosts.json"
BATCHES = {"digits CNN": 64, "larger CNN": 64}
"""Global batch of each model."""
STRONG = {"1 process, 2 devices": (1, 2), "2 processes, 1 device each": (2, 1), "4 processes, 1 device each": (4, 1)}
WEAK = {"1 process": (1, 1), "2 processes": (2, 1), "4 processes": (4, 1)}
FITS = 3


def model_of(name: str) -> Any:
    """Return the model, compiled."""
    import keras
    from keras.layers import Conv2D, Dense, Flatten, MaxPooling2D

    head = [Flatten(), Dense(64, "relu"), Dense(10)]
    if name == "digits CNN":
        layers = [Conv2D(32, 3, activation="relu"), *head]
    else:
        convolutions = [Conv2D(width, 3, activation="relu", padding="same") for width in (32, 32)]
        layers = [*convolutions, MaxPooling2D(), *head]
    model: Any = keras.Sequential(layers)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(result: Path, name: str, batch: int, cores: int) -> None:
    """Fit a model, and write seconds per step, per all-reduce of its gradients, and per agreement."""
    from anytpu import _env

    launched = _env.launched_process()
    import anytpu as tpu  # isort: skip
    import jax

    (x, y), _ = tpu.pipeline.digits()
    local = tpu.TPUClusterResolver.from_address(tpu.system.Address("local", cores))
    strategy = tpu.connect() if launched else tpu.TPUStrategy(local)
    with strategy.scope():
        model = model_of(name)
    epochs = 8 if name == "digits CNN" else 2
    for _ in range(2):
        model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
    claim_cores((launched.index if launched else 0) if cores == 1 else None)
    steps_s = []
    for _ in range(FITS):
        began_s = time.perf_counter()
        model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
        steps_s.append((time.perf_counter() - began_s) / (epochs * -(-len(x) // batch)))
    hosts, repeats = strategy.backend.hosts, 200
    began_s = time.perf_counter()
    for _ in range(repeats):
        hosts.exchange()
    seconds = {
        "step_s": statistics.median(steps_s),
        "best_step_s": min(steps_s),
        "all_reduce_s": all_reduce_s(model.count_params() + 1) if launched else 0.0,
        "exchange_s": (time.perf_counter() - began_s) / repeats,
    }
    if jax.process_index() == 0:
        result.write_text(json.dumps(seconds))


def claim_cores(index: int | None) -> None:
    """Pin this process to one core; give it real-time priority where that is allowed, because others use the machine.

    Args:
        index: index of the core, modulo their number; None for all cores.
    """
    count = os.cpu_count() or 1
    chosen = set(range(count)) if index is None else {index % count}
    for thread in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(thread, chosen)
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))


def all_reduce_s(count: int, repeats: int = 50) -> float:
    """Return the seconds of an exchange of as many numbers between all devices, as the engine makes it."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from anytpu.engine.joint_sums import joint_sum

    mesh, whole = Mesh(np.array(jax.devices()), ("replica",)), PartitionSpec()
    numbers = np.ones(count, "float32")
    vector = jax.make_array_from_callback(numbers.shape, NamedSharding(mesh, whole), lambda index: numbers[index])

    def exchanges(vector: Any) -> Any:
        step = lambda _, vector: joint_sum([vector], "replica", mesh.size)[0] / mesh.size  # noqa: E731
        return jax.lax.fori_loop(0, repeats, step, vector)

    loop = jax.jit(jax.shard_map(exchanges, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False))
    jax.block_until_ready(loop(vector))
    durations_s = []
    for _ in range(5):
        began_s = time.perf_counter()
        jax.block_until_ready(loop(vector))
        durations_s.append((time.perf_counter() - began_s) / repeats)
    return statistics.median(durations_s)


def run(name: str, batch: int, processes: int, devices: int) -> dict[str, float]:
    """Run one contender, and return its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        words = [str(Path(__file__)), "--train", str(result), name, str(batch), str(devices)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
        if processes == 1:
            command = [sys.executable, *words]
            flags = f"--xla_force_host_platform_device_count={devices}"
            environment |= {"XLA_FLAGS": flags, "PJRT_NPROC": "16" if devices > 1 else "1"}
        else:
            command = [sys.executable, "-m", "anytpu", "launch", "-n", str(processes), "--cores", str(devices), *words]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return json.loads(result.read_text())


def main(rounds: int) -> None:
    """Run all contenders in turn, and write the medians."""
    from machine import cpu_name

    contenders = {
        (model, kind, name): (batch if kind == "strong" else batch // 2 * processes, processes, devices)
        for model, batch in BATCHES.items()
        for kind, each in (("strong", STRONG), ("weak", WEAK))
        for name, (processes, devices) in each.items()
    }
    seconds: dict[Any, list[dict[str, float]]] = {key: [] for key in contenders}
    for _ in range(rounds):
        for key, (batch, processes, devices) in contenders.items():
            seconds[key].append(run(key[0], batch, processes, devices))
            print(*key, seconds[key][-1], flush=True)
    results: dict[str, Any] = {"machine": {"processor": cpu_name(), "cores": os.cpu_count()}, "rounds": rounds}
    for (model, kind, name), found in seconds.items():
        parts = {part: statistics.median(each[part] for each in found) for part in found[0]}
        scaling = results.setdefault(model, {"batch": BATCHES[model]}).setdefault(kind, {})
        one = next(iter(scaling.values()), parts)
        rows = 1 if kind == "strong" else contenders[model, kind, name][1]
        ratios = {"speed": one["step_s"] / parts["step_s"], "best_speed": one["best_step_s"] / parts["best_step_s"]}
        scaling[name] = parts | {ratio: value * rows for ratio, value in ratios.items()}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
