"""How long a plan takes: an MNIST CNN for five TPUs, beside the bare compilations that it cannot do without.

`bare` compiles the same step for the same five systems one after another, in a process that does nothing else;
`plan` is `tpu.plan` without its cache, two compilations at a time, in a process of its own, everything included:
Keras's import, the compilers' starts, the prices of all operations. They take turns. Seconds of the clock and of the
CPU.

    python benchmarks/plan_speed.py [ROUNDS]    writes benchmarks/results/plan_speed.json
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

SYSTEMS = ("v2-8", "v3-8", "v4-8", "v5e-8", "v6e-8")
BATCH = 1024
RESULTS = Path(__file__).parent / "results" / "plan_speed.json"


def network():
    import anytpu as tpu  # noqa: F401  # isort: skip
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(128, "relu"),
            layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def bare() -> None:
    """Compile the step for each system, and take what the compiler says."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import anytpu as tpu
    from anytpu.planning.records.target import target_named

    program = tpu.program.of(network(), batch_size=BATCH)
    for name in SYSTEMS:
        target = target_named(name)
        devices = topologies.get_topology_desc(
            target.compiler_name, platform="tpu", **target.compiler_arguments
        ).devices
        mesh = Mesh(np.array(devices), ("x",))
        whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("x"))
        state, batch = (
            jax.tree.map(lambda one, lay=lay: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=lay), tree)
            for tree, lay in ((program.state, whole), (program.batch, split))
        )
        jitted = jax.jit(lambda *given: program.step(*given), donate_argnums=0, out_shardings=(whole, None))
        compiled = jitted.lower(state, batch).compile()
        compiled.as_text()
        compiled.memory_analysis()


def planned() -> None:
    """Plan for all systems."""
    import anytpu as tpu

    print(len(tpu.plan(network(), BATCH, SYSTEMS, use_cache=False)), "systems", file=sys.stderr)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    quiet = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v3-8"}
    quiet |= {"TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_LOG_DIR": "disabled"}
    taken: dict[str, list[tuple[float, float]]] = {"bare": [], "plan": []}
    for _ in range(rounds):
        for way, times in taken.items():
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            command = [sys.executable, __file__, f"--{way}"]
            subprocess.run(command, check=True, env=os.environ | quiet, stderr=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            times.append((round(time.monotonic() - started, 1), round(cpu_s, 1)))
            print(way, "clock and CPU seconds:", times[-1], flush=True)
    medians = {way: [statistics.median(column) for column in zip(*times, strict=True)] for way, times in taken.items()}
    found = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared",
        "systems": SYSTEMS,
        "clock_and_cpu_s": taken,
        "plan_over_bare": [round(a / b, 2) for a, b in zip(medians["plan"], medians["bare"], strict=True)],
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["plan_over_bare"]))


if __name__ == "__main__":
    {"--bare": bare, "--plan": planned}.get(sys.argv[-1], main)()
