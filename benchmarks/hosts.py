"""Several processes on this machine beside one: the speed of fit, and the cost of agreement.

Processes share the machine's cores, so more processes cannot be faster. The ratio shows the cost of the collectives and
of the agreement. Each round runs the contenders one after the other; ratios are of medians over the rounds.

    python benchmarks/hosts.py [ROUNDS]    writes benchmarks/results/hosts.json
"""

from __future__ import annotations

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
CONTENDERS = {
    "1 process, 2 devices": (1, 2),
    "2 processes, 1 device each": (2, 1),
    "4 processes, 1 device each": (4, 1),
}
EPOCHS = 12


def train(result: Path) -> None:
    """Fit the CNN of the digits, and write seconds per step and the durations of the parts of an agreement."""
    import anytpu as tpu  # isort: skip
    import jax
    import keras
    from keras.layers import Conv2D, Dense, Flatten

    from anytpu import _env

    (x, y), _ = tpu.pipeline.digits()
    local = tpu.TPUClusterResolver.from_address(tpu.system.Address("local", 2))
    strategy = tpu.connect() if _env.launched_process() else tpu.TPUStrategy(local)
    with strategy.scope():
        model: Any = keras.Sequential([Conv2D(32, 3, activation="relu"), Flatten(), Dense(64, "relu"), Dense(10)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=64, epochs=2, verbose=0)
    began_s = time.perf_counter()
    model.fit(x, y, batch_size=64, epochs=EPOCHS, verbose=0)
    step_s = (time.perf_counter() - began_s) / (EPOCHS * -(-len(x) // 64))
    hosts, repeats = strategy.backend.hosts, 200
    began_s = time.perf_counter()
    for _ in range(repeats):
        hosts.exchange()
    exchange_s = (time.perf_counter() - began_s) / repeats
    if jax.process_index() == 0:
        result.write_text(json.dumps({"step_s": step_s, "exchange_s": exchange_s}))


def run(processes: int, devices: int) -> dict[str, float]:
    """Run one contender, and return its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        words = [str(Path(__file__)), "--train", str(result)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        if processes == 1:
            command = [sys.executable, *words]
            flags = f"--xla_force_host_platform_device_count={devices}"
            environment |= {"XLA_FLAGS": flags, "PJRT_NPROC": "16"}
        else:
            command = [sys.executable, "-m", "anytpu", "launch", "-n", str(processes), "--cores", str(devices), *words]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return json.loads(result.read_text())


def main(rounds: int) -> None:
    """Run all contenders in turn, and write the medians."""
    from machine import cpu_name

    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name, (processes, devices) in CONTENDERS.items():
            seconds[name].append(run(processes, devices))
            print(name, seconds[name][-1], flush=True)
    medians = {
        name: {part: statistics.median(each[part] for each in rounds_) for part in rounds_[0]}
        for name, rounds_ in seconds.items()
    }
    one_s = medians["1 process, 2 devices"]["step_s"]
    results = {
        "machine": {"processor": cpu_name(), "cores": os.cpu_count()},
        "rounds": rounds,
        "job": "fit of the CNN of the digits, batch 64",
        "medians": {name: {**parts, "speed": one_s / parts["step_s"]} for name, parts in medians.items()},
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results["medians"], indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
