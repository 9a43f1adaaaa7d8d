"""Twelve programs in the style of keras.io: anytpu on eight virtual cores of the CPU beside plain Keras 3 on JAX.

    python benchmarks/keras_programs.py [--programs mini_gpt,gan,...] [--quick] [--busy] [--output FILE]

The programs are in benchmarks/contenders/programs.py. Each contender is a process of its own, plain Keras's without
anytpu; they take turns, one at a time, and which begins changes from round to round. The first turn, which compiles, is
not counted. A ratio is speed beside plain Keras, the ratio of the medians of the times of a turn: 2 is twice as fast.
Beside it stands the median over the rounds of the ratio of two neighbouring turns, which other work on the machine
moves less. With `--busy` a process that always computes runs beside them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import cpu_name

HERE = Path(__file__).resolve().parent
CONTENDERS = ("keras", "anytpu")
ROUNDS, QUICK = 9, 3
PAUSE_S = 0.1
STEPS = {
    "mini_gpt": 12,
    "transformer": 25,
    "vae": 20,
    "gan": 20,
    "siamese": 60,
    "mlp_metrics": 60,
    "convnet": 20,
    "lstm": 20,
    "multi": 80,
    "callback": 400,
    "train_on_batch": 300,
    "predict_row": 100,
}
"""The steps of one turn of each program: a second or less on two cores."""


class Worker:
    """A contender with one program: a process that runs a turn when it is asked to."""

    def __init__(self, contender: str, program: str) -> None:
        self._request = json.dumps({"job": program, "steps": STEPS[program]}) + "\n"
        log = Path(tempfile.gettempdir()) / f"keras_programs.{os.getpid()}.{contender}.log"
        self._log = log.open("w")
        environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, HERE / "contenders" / "keras_style.py", contender]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log, "text": True}
        self._process = subprocess.Popen(command, env=environment, **pipes)

    def turn(self) -> dict[str, float]:
        """Run one turn; return its seconds of wall and of CPU, and the loss."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        stdin.write(self._request)
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise SystemExit(f"a contender failed: see {self._log.name}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._log.close()


def race(program: str, rounds: int) -> dict[str, Any]:
    """Let the contenders take turns; return each one's median, least and most seconds a turn, and the ratios."""
    workers = {name: Worker(name, program) for name in CONTENDERS}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    try:
        for worker in workers.values():
            worker.turn()
            worker.turn()
        for number in range(rounds):
            for name in CONTENDERS if number % 2 else reversed(CONTENDERS):
                time.sleep(PAUSE_S)  # the threads of the one before have gone to sleep
                turns[name].append(workers[name].turn())
    finally:
        for worker in workers.values():
            worker.close()
    result: dict[str, Any] = {name: summary(some) for name, some in turns.items()}
    pairs = zip(turns["keras"], turns["anytpu"], strict=True)
    result["ratio"] = result["keras"]["turn_s"] / result["anytpu"]["turn_s"]
    result["ratio_of_pairs"] = statistics.median(theirs["wall_s"] / ours["wall_s"] for theirs, ours in pairs)
    return result


def summary(turns: list[dict[str, float]]) -> dict[str, float]:
    walls = [turn["wall_s"] for turn in turns]
    return {
        "turn_s": statistics.median(walls),
        "turn_min_s": min(walls),
        "turn_max_s": max(walls),
        "turn_cpu_s": statistics.median(turn["cpu_s"] for turn in turns),
        "loss": turns[-1]["loss"],
    }


def row(program: str, result: dict[str, Any]) -> str:
    """Return one line of the table: milliseconds a step of each contender, and the ratios."""
    steps_ms = " ".join(f"{1e3 * result[name]['turn_s'] / STEPS[program]:10.3f}" for name in CONTENDERS)
    least_ms = " ".join(f"{1e3 * result[name]['turn_min_s'] / STEPS[program]:10.3f}" for name in CONTENDERS)
    return f"{program:15} {steps_ms} {least_ms} {result['ratio']:7.2f} {result['ratio_of_pairs']:7.2f}"


def machine() -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in ("jax", "keras", "numpy")}
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()} | versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(STEPS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} rounds")
    parser.add_argument("--busy", action="store_true", help="beside a process that always computes")
    parser.add_argument("--output", help="write the figures as JSON here, e.g. benchmarks/results/keras_programs.json")
    options = parser.parse_args()
    record: dict[str, Any] = {"machine": machine(), "busy": options.busy, "load_before": os.getloadavg()[0]}
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if options.busy else None
    head = f"{'keras ms':>10} {'anytpu ms':>10} {'least':>10} {'least':>10} {'ratio':>7} {'pairs':>7}"
    print(f"{'':15} {head}", flush=True)
    record["programs"] = {}
    try:
        for program in options.programs.split(","):
            result = race(program, QUICK if options.quick else options.rounds)
            record["programs"][program] = result
            print(row(program, result), flush=True)
    finally:
        if neighbour is not None:
            neighbour.kill()
    record["load_after"] = os.getloadavg()[0]
    if options.output:
        Path(options.output).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
