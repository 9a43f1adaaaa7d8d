"""Speed of checkpoints beside Orbax and Keras's BackupAndRestore. Each call is one round of all parts, or of one.

    python benchmarks/checkpoints.py [--mib 1024] [--only PART] [--output FILE]

- state: variables of `--mib` are saved four times and restored once: seconds for which the program waits in a save
  (with the search for NaN), seconds of the restore from a disk whose cache was dropped, memory beyond the state. The
  disk's own rates are measured beside it with the same bytes.
- fit: steps of about 20 ms, 1,000 without checkpoints and 1,000 with one each 100 steps, alternated in one process.

Rounds are added to the output file. Orbax runs in $BENCHMARK_VENVS/orbax; without that environment it is left out.
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
PAIRS = 1


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
    import keras

    import anytpu as tpu
    from anytpu.train.checkpoint import Checkpoints

    state = {name: keras.Variable(array) for name, array in made_state(mib).items()}
    before_mib, stops, ended_s = peak_mib(), [], 0.0
    # A better metric saves after each step, whatever the policy says.
    saved = tpu.Checkpointer(folder, every_s=None, keep=1, best="score", mode="max")
    for step in saved.steps(SAVES + 1, **state):
        if step:
            stops.append(time.perf_counter() - ended_s)
        time.sleep(BODY_S)
        if step and Checkpoints(folder).latest() != step:
            raise AssertionError(f"step {step} was not saved")
        saved.report(score=step)
        ended_s = time.perf_counter()
    peak = peak_mib() - before_mib
    restored = {name: keras.Variable(variable.value * 0) for name, variable in state.items()}
    drop_cache(folder)
    began_s = time.perf_counter()
    for _ in tpu.Checkpointer(folder).steps(SAVES + 2, **restored):
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


def fitted(folder: Path, is_ours: bool) -> dict[str, Any]:
    import contextlib

    import keras
    import numpy as np

    import anytpu as tpu
    from anytpu.train.checkpoint import Checkpoints

    keras.utils.set_random_seed(7)
    with tpu.connect("v2-8").scope() if is_ours else contextlib.nullcontext():
        model: Any = keras.Sequential([keras.Input((1024,)), *[keras.layers.Dense(1024, "relu") for _ in range(4)]])
        model.compile("adam", "mse")
    x = np.random.default_rng(0).random((128 * 100, 1024), dtype="float32")
    model.fit(x, x, batch_size=128, epochs=1, verbose=0)
    found: dict[str, Any] = {"step_s": [], "saving_step_s": [], "ratio": [], "saves": []}
    for pair in range(PAIRS):
        where = folder / str(pair)
        arguments: dict[str, Any] = {}
        for kind in ("step_s", "saving_step_s"):
            if kind == "saving_step_s" and is_ours:
                arguments["checkpoint_dir"] = tpu.Checkpointer(where, every_s=None, every_steps=100, keep=STEPS)
            elif kind == "saving_step_s":
                arguments["callbacks"] = [keras.callbacks.BackupAndRestore(where)]  # saves after each epoch
            began_s = time.perf_counter()
            model.fit(x, x, batch_size=128, epochs=STEPS // 100, verbose=0, **arguments)
            found[kind].append((time.perf_counter() - began_s) / STEPS)
        found["ratio"].append(found["step_s"][-1] / found["saving_step_s"][-1])
        found["saves"].append(len(Checkpoints(where).steps()) if is_ours else STEPS // 100)
        shutil.rmtree(where, ignore_errors=True)
    return found


CHILDREN = {
    "disk": lambda folder, mib: disk(folder, mib),
    "anytpu state": anytpu_state,
    "orbax state": orbax_state,
    "anytpu fit": lambda folder, mib: fitted(folder, True),
    "keras fit": lambda folder, mib: fitted(folder, False),
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
    parser.add_argument("--only", choices=CHILDREN, help="measure this part only")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(CHILDREN[arguments.child](arguments.folder.resolve(), arguments.mib)))
        return
    from machine import cpu_name

    output = arguments.output
    results = json.loads(output.read_text())["all"] if output and output.exists() else {}
    has_orbax = Path(os.environ.get("BENCHMARK_VENVS", ".venv-benchmarks"), "orbax/bin/python").exists()
    names = [name for name in CHILDREN if has_orbax or not name.startswith("orbax")]
    for name in [arguments.only] if arguments.only else names:
        results.setdefault(name, []).append(measured(name, arguments.mib))
        print(name, results[name][-1], flush=True)
    medians = {name: {key: median_of(found, key) for key in found[0]} for name, found in results.items()}
    record = {"machine": cpu_name(), "mib": arguments.mib, "medians": medians, "all": results}
    print(json.dumps(medians, indent=2))
    if output:
        output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
