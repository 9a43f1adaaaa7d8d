"""Speed of checkpoints beside Orbax and Keras's BackupAndRestore, in one run, alternated.

    python benchmarks/checkpoints.py [--mib 1024] [--rounds 3] [--output FILE]

- state: a JAX state of `--mib` is saved four times and restored once: seconds for which the program waits in a save,
  seconds until it is written, seconds of the restore from a disk whose cache was dropped, and memory beyond the state.
  The disk's own rates are measured beside it with the same bytes.
- fit: 1,000 steps of about 20 ms, with a checkpoint each 100 steps and without.

Orbax runs in $BENCHMARK_VENVS/orbax; without that environment it is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ARRAYS = 16
SAVES = 4
BODY_S = 8.0
STEPS = 1000


def made_state(mib: int) -> dict[str, Any]:
    import jax.numpy as jnp

    return {f"w{i}": jnp.full((mib * 2**20 // 4 // ARRAYS,), float(i), jnp.float32) for i in range(ARRAYS)}


def drop_cache(folder: Path) -> None:
    """Ask the system to forget the cached bytes of all files of a folder."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def anytpu_state(folder: Path, mib: int) -> dict[str, Any]:
    import anytpu as tpu

    state = made_state(mib)
    before_mib, stops, ended_s = peak_mib(), [], None
    saved = tpu.Checkpointer(folder, every_s=None, every_steps=1, keep=1)
    for _ in saved.steps(SAVES + 1, state=state):
        if ended_s is not None:
            stops.append(time.perf_counter() - ended_s)
        time.sleep(BODY_S)
        ended_s = time.perf_counter()
    peak = peak_mib() - before_mib
    restored = {name: array * 0 for name, array in state.items()}
    drop_cache(folder)
    began_s = time.perf_counter()
    for _ in tpu.Checkpointer(folder).steps(SAVES + 2, state=restored):
        return {"stop_s": stops, "restore_s": time.perf_counter() - began_s, "memory_mib": peak}
    raise AssertionError("nothing was restored")


def orbax_state(folder: Path, mib: int) -> dict[str, Any]:
    import orbax.checkpoint as ocp

    state = made_state(mib)
    before_mib, stops = peak_mib(), []
    with ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()) as saver:
        for step in range(SAVES):
            began_s = time.perf_counter()
            saver.save(folder / str(step), args=ocp.args.StandardSave(state))
            stops.append(time.perf_counter() - began_s)
            time.sleep(BODY_S)
            saver.wait_until_finished()
            if step:
                shutil.rmtree(folder / str(step - 1))
        peak = peak_mib() - before_mib
        drop_cache(folder)
        began_s = time.perf_counter()
        saver.restore(folder / str(SAVES - 1), args=ocp.args.StandardRestore(state))
    return {"stop_s": stops, "restore_s": time.perf_counter() - began_s, "memory_mib": peak}


def disk(folder: Path, mib: int) -> dict[str, Any]:
    """Write and read the bytes of the state without anything else."""
    folder.mkdir()
    content, path = bytes(2**20), folder / "bytes"
    began_s = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(content)
        os.fsync(file.fileno())
    written_s = time.perf_counter() - began_s
    drop_cache(folder)
    buffer = bytearray(8 * 2**20)
    began_s = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return {"write_s": written_s, "restore_s": time.perf_counter() - began_s}


def fitted(folder: Path, is_ours: bool, has_checkpoints: bool) -> dict[str, Any]:
    import contextlib

    import keras
    import numpy as np

    import anytpu as tpu

    keras.utils.set_random_seed(7)
    with tpu.connect("v2-8").scope() if is_ours else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((1024,)), *[keras.layers.Dense(1024, "relu") for _ in range(4)]])
        model.compile("adam", "mse")
    x = np.random.default_rng(0).random((128 * 100, 1024), dtype="float32")
    model.fit(x, x, batch_size=128, epochs=1, verbose=0)
    arguments: dict[str, Any] = {}
    if has_checkpoints and is_ours:
        arguments["checkpoint_dir"] = tpu.Checkpointer(folder, every_s=None, every_steps=100, keep=1)
    elif has_checkpoints:
        arguments["callbacks"] = [keras.callbacks.BackupAndRestore(folder, save_freq=100)]
    began_s = time.perf_counter()
    model.fit(x, x, batch_size=128, epochs=STEPS // 100, verbose=0, **arguments)
    return {"step_s": (time.perf_counter() - began_s) / STEPS}


CHILDREN = {
    "disk": lambda folder, mib: disk(folder, mib),
    "anytpu state": anytpu_state,
    "orbax state": orbax_state,
    "anytpu fit": lambda folder, mib: fitted(folder, True, False),
    "anytpu fit, checkpoints": lambda folder, mib: fitted(folder, True, True),
    "keras fit": lambda folder, mib: fitted(folder, False, False),
    "keras fit, BackupAndRestore": lambda folder, mib: fitted(folder, False, True),
}


def measured(name: str, mib: int) -> dict[str, Any]:
    """Run one contender in a process of its own."""
    python = sys.executable
    if name.startswith("orbax"):
        python = f"{os.environ.get('BENCHMARK_VENVS', '.venv-benchmarks')}/orbax/bin/python"
    with tempfile.TemporaryDirectory(dir=".") as folder:
        command = [python, __file__, "--child", name, "--folder", f"{folder}/run", "--mib", str(mib)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
        shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return json.loads(shown.splitlines()[-1])


def median_of(results: list[dict[str, Any]], key: str) -> float:
    values = [result[key] for result in results]
    return statistics.median([v for value in values for v in (value if isinstance(value, list) else [value])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(CHILDREN[arguments.child](arguments.folder.resolve(), arguments.mib)))
        return
    from machine import cpu_name

    results: dict[str, list[dict[str, Any]]] = {}
    has_orbax = Path(os.environ.get("BENCHMARK_VENVS", ".venv-benchmarks"), "orbax/bin/python").exists()
    names = [name for name in CHILDREN if has_orbax or not name.startswith("orbax")]
    for _ in range(arguments.rounds):
        for name in names:
            results.setdefault(name, []).append(measured(name, arguments.mib))
            print(name, results[name][-1], flush=True)
    medians = {name: {key: median_of(found, key) for key in found[0]} for name, found in results.items()}
    record = {
        "machine": cpu_name(),
        "mib": arguments.mib,
        "rounds": arguments.rounds,
        "medians": medians,
        "all": results,
    }
    print(json.dumps(medians, indent=2))
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
