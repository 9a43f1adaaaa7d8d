"""A table of embeddings of which a step updates the rows it uses, beside Keras's Embedding and torch's EmbeddingBag.

A model is a mean over bags of 20 ids and a Dense layer of one unit, trained on batches of 4096 bags. The table is 64
wide, of float32; its optimizer is Adam (torch: SparseAdam). Ids are uniform, so nearly all of a batch differ.

    python benchmarks/embedding_tables.py [--rows 10000000] [--rounds 5] [--torch PYTHON] [--gpu] [--output FILE]

Each contender is a process of its own that stays until the end of its part. They take turns of ten steps. The parts:

- rows: a tenth of the rows, and all of them.
- cores: eight virtual cores, and one.
- torch: EmbeddingBag(mode="mean", sparse=True) with SparseAdam, in the environment of PYTHON; left out without it.
- keras: Embedding and GlobalAveragePooling1D with Keras's Adam.
- xla: the same model with ANYTPU_KERNELS=xla.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTH, BATCH, SIZE, STEPS = 64, 4096, 20, 10
SLOTS = 2


def keras_turn(kind: str, rows: int) -> Callable[[], object]:
    """Return a function that trains STEPS steps of a Keras model; `kind` is keras, local or a number of cores."""
    import keras
    import numpy as np

    rng = np.random.default_rng(0)
    ids = rng.integers(0, rows, (STEPS * BATCH, SIZE)).astype("int32")
    y = rng.normal(size=(STEPS * BATCH, 1)).astype("float32")

    def model(*layers: Any) -> Any:
        made = keras.Sequential([keras.Input((SIZE,), dtype="int32"), *layers, keras.layers.Dense(1)])
        made.compile("adam", "mse")
        return made

    if kind == "keras":
        trained = model(keras.layers.Embedding(rows, WIDTH), keras.layers.GlobalAveragePooling1D())
    else:
        import anytpu as tpu
        from anytpu.embedding import ShardedEmbedding

        system = tpu.connect("local") if kind == "local" else tpu.connect("virtual", cores=int(kind))
        with system.scope():
            trained = model(ShardedEmbedding(rows, WIDTH, "mean", optimizer="adam", on_bad_id="drop"))
    return lambda: trained.fit(ids, y, batch_size=BATCH, verbose=0, shuffle=False)


def torch_turn(rows: int) -> Callable[[], object]:
    """Return a function that trains STEPS steps of torch's model."""
    import torch  # pyright: ignore[reportMissingImports]

    device = "cuda" if os.environ["JAX_PLATFORMS"] != "cpu" else "cpu"
    torch.manual_seed(0)
    torch.set_default_device(device)
    ids, y = torch.randint(0, rows, (STEPS, BATCH, SIZE)), torch.randn(STEPS, BATCH, 1)
    bag, dense = torch.nn.EmbeddingBag(rows, WIDTH, mode="mean", sparse=True), torch.nn.Linear(WIDTH, 1)
    optimizers = [torch.optim.SparseAdam(bag.parameters()), torch.optim.Adam(dense.parameters())]

    def train() -> None:
        for bags, target in zip(ids, y, strict=True):
            for optimizer in optimizers:
                optimizer.zero_grad()
            torch.nn.functional.mse_loss(dense(bag(bags)), target).backward()
            for optimizer in optimizers:
                optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return train


def contend(kind: str, rows: int) -> None:
    """Run a turn for each line of the standard input, and print its time and the memory of this process."""
    turn = torch_turn(rows) if kind == "torch" else keras_turn(kind, rows)
    for _ in sys.stdin:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        turn()
        took = {"wall_s": time.perf_counter() - began_s, "cpu_s": time.process_time() - began_cpu_s}
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        memory = {name: 1024 * int(status[key].split()[0]) for name, key in (("peak", "VmHWM"), ("now", "VmRSS"))}
        print("turn", json.dumps({key: s / STEPS for key, s in took.items()} | {"bytes": memory}), flush=True)


class Contender:
    """A process that trains in turns."""

    def __init__(self, kind: str, rows: int, python: str = sys.executable, **environment: str) -> None:
        settings = {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"} | environment
        self._process = subprocess.Popen(
            [python, "-W", "ignore", __file__, "--contend", kind, "--rows", str(rows)],
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self) -> dict[str, Any]:
        """Train, and return the seconds of a step, wall and processor, and the bytes of the process."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        print("turn", file=stdin, flush=True)
        for line in stdout:
            if line.startswith("turn "):
                return json.loads(line[5:])
        raise SystemExit("a contender failed: its error is above")

    def close(self) -> None:
        self._process.communicate()


def race(rounds: int, contenders: dict[str, Contender]) -> dict[str, Any]:
    """Let contenders take turns; return the median of each, and its ratio to the first one's."""
    load = os.getloadavg()[0]
    for contender in contenders.values():
        contender.turn()  # The first one compiles.
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            turns[name].append(contender.turn())
    for contender in contenders.values():
        contender.close()
    median = {
        name: {key: statistics.median(turn[key] for turn in some) for key in ("wall_s", "cpu_s")}
        for name, some in turns.items()
    }
    first = next(iter(median.values()))
    return {
        "load_before": round(load, 2),
        "step": median,
        "times_of_first": {
            name: {key: round(value / first[key], 3) for key, value in each.items()} for name, each in median.items()
        },
        "bytes": {name: some[-1]["bytes"] for name, some in turns.items()},
    }


def parts(rows: int, torch: str | None, has_gpu: bool) -> dict[str, Callable[[], dict[str, Contender]]]:
    """Return the functions that start the contenders of each part; the first contender is the one to compare with.

    A GPU has no parts for CPU cores and kernels. The batches of torch are on it before its turn.

    Args:
        rows: number of rows of the table.
        torch: Python of an environment with torch; None leaves its part out.
        has_gpu: whether the parts run on this machine's GPU, and not on its CPU.
    """
    anytpu = "local" if has_gpu else "1"
    gpu = {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if has_gpu else {}

    def start(kind: str, count: int = rows, python: str = sys.executable, **environment: str) -> Contender:
        return Contender(kind, count, python, **gpu, **environment)

    every = {
        "rows": lambda: {"tenth": start(anytpu, rows // 10), "all": start(anytpu)},
        "cores": lambda: {"one": start(anytpu), "eight": start("8")},
        "torch": lambda: {"anytpu": start(anytpu), "torch": start("torch", python=torch or "")},
        "keras": lambda: {"anytpu": start(anytpu), "keras": start("keras")},
        "xla": lambda: {"kernels": start(anytpu), "xla": start(anytpu, ANYTPU_KERNELS="xla")},
    }
    left_out = {*(["cores", "xla"] if has_gpu else []), *(["torch"] if torch is None else [])}
    return {name: start_part for name, start_part in every.items() if name not in left_out}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts")
    parser.add_argument("--torch", help="Python of an environment with torch")
    parser.add_argument("--gpu", action="store_true", help="on this machine's GPU, with torch of this environment")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        return contend(options.contend, options.rows)
    from machine import cpu_name

    table_bytes = (1 + SLOTS) * options.rows * WIDTH * 4
    record: dict[str, Any] = {"machine": cpu_name(), "processors": os.cpu_count(), "rounds": options.rounds}
    record |= {"table_rows": options.rows, "width": WIDTH, "ids": [BATCH, SIZE], "table_and_slots_bytes": table_bytes}
    made = parts(options.rows, sys.executable if options.gpu else options.torch, options.gpu)
    for name in options.parts.split(",") if options.parts else made:
        record[name] = race(options.rounds, made[name]())
        print(name, json.dumps(record[name], indent=1), flush=True)
        if options.output:
            options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
