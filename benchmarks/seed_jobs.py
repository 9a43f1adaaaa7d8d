"""Seven jobs at their own sizes, against the frameworks that people train with on a CPU today.

    scripts/benchmark_venvs    # once: an environment for each peer
    .venv/bin/python benchmarks/seed_jobs.py [--quick] [--jobs iris,imdb,...] [--output FILE]

    iris      MLP 5-256-3, one example at a time, 100 epochs of 100 examples
    imdb      Embedding(15000, 32), LSTM(100), Dense(1), 250 words, batch 64 (390 batches are an epoch; 30 are timed)
    gru       the same with a GRU(100)
    mnist     two convolutions of 256 filters, three dense layers, batch 200 (300 are an epoch; 2 are timed)
    cifar10   ResNet-20, batch 128 (390 are an epoch; 10 are timed)
    resnet50  ResNet-50 on images of 224 x 224, 1,000 classes, batch 16 (3 are timed)
    gpt       a decoder of 4 layers of width 128 with 4 heads, 64 positions of 1,000 words, batch 32 (20 are timed)

Each contender is a process of its own in an environment of its own (benchmarks/contenders/). It stays alive, and they
take turns round by round, one at a time. The first call, which compiles, is not counted. What is compared is the ratio
of the medians of the times of one step. Arrays are random; the time of none of these jobs depends on them.
"""

from __future__ import annotations

import argparse
import dataclasses
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
VENVS = Path(os.environ.get("BENCHMARK_VENVS", HERE.parent / ".venv-benchmarks"))
BATCH = {"iris": 1, "imdb": 64, "gru": 64, "mnist": 200, "cifar10": 128, "resnet50": 16, "gpt": 32}
STEPS = {"iris": 10_000, "imdb": 30, "gru": 30, "mnist": 2, "cifar10": 10, "resnet50": 3, "gpt": 20}
"""The steps of one turn."""

ROUNDS = {"iris": 5, "imdb": 7, "gru": 7, "mnist": 5, "cifar10": 7, "resnet50": 5, "gpt": 7}
PAUSE_S = 0.3


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to train.

    Attributes:
        script: what it runs, in benchmarks/contenders.
        environment: variables of its own.
        steps: steps of one turn where they differ from STEPS: slow ones run fewer.
        jobs: what it takes part in.
        venv: the environment it runs in; None is that of this process.
    """

    script: str
    venv: str | None = None
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    steps: dict[str, int] = dataclasses.field(default_factory=dict)
    jobs: tuple[str, ...] = tuple(STEPS)


SLOW_IRIS = {"iris": 500}
JAX, TENSORFLOW = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}, {"KERAS_BACKEND": "tensorflow"}
CONTENDERS = {
    "anytpu": Contender("anytpu_fit.py"),
    "keras-jax": Contender("keras_fit.py", "keras-jax", JAX, SLOW_IRIS),
    "keras-tf": Contender("keras_fit.py", "keras-tensorflow", TENSORFLOW, SLOW_IRIS),
    "keras-tf-no-xla": Contender("keras_fit.py", "keras-tensorflow", TENSORFLOW | {"WITHOUT_XLA": "1"}, SLOW_IRIS),
    "torch": Contender("torch_loop.py", "torch", steps={"iris": 2000}),
    "session": Contender("tf1_session.py", "session", steps={"iris": 5000}, jobs=("iris",)),
}


def python_of(contender: Contender) -> Path:
    """Return the Python of a contender's environment."""
    python = Path(sys.executable) if contender.venv is None else VENVS / contender.venv / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"there is no {python}: type scripts/benchmark_venvs")
    return python


class Worker:
    """A contender at work: a process that trains when it is asked to."""

    def __init__(self, name: str, contender: Contender) -> None:
        self.contender = contender
        log = Path(tempfile.gettempdir()) / f"seed_jobs.{name}.log"
        self._log = log.open("w")
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | contender.environment
        command = [python_of(contender), HERE / "contenders" / contender.script]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log, "text": True}
        self._process = subprocess.Popen(command, env=environment, **pipes)

    def steps(self, job: str) -> int:
        return self.contender.steps.get(job, STEPS[job])

    def train(self, job: str) -> dict[str, float]:
        """Train one turn; return seconds of wall and of CPU for one step, and the loss."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        stdin.write(json.dumps({"job": job, "steps": self.steps(job)}) + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise SystemExit(f"{self.contender.script} failed: see {self._log.name}")
        turn = json.loads(answer)
        return {"wall_s": turn["wall_s"] / self.steps(job), "cpu_s": turn["cpu_s"] / self.steps(job)} | {
            "loss": turn["loss"]
        }

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._log.close()


def race(job: str, rounds: int, names: list[str]) -> dict[str, dict[str, float]]:
    """Let the contenders of a job take turns; return for each the median, least and most of one step."""
    workers = {name: Worker(name, CONTENDERS[name]) for name in names if job in CONTENDERS[name].jobs}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    try:
        for index in range(rounds + 1):
            for name, worker in workers.items():
                time.sleep(PAUSE_S)  # the threads of the one before have gone to sleep
                turn = worker.train(job)
                if index:
                    turns[name].append(turn)
    finally:
        for worker in workers.values():
            worker.close()
    return {name: summary(job, some) for name, some in turns.items()}


def summary(job: str, turns: list[dict[str, float]]) -> dict[str, float]:
    walls = [turn["wall_s"] for turn in turns]
    median_s = statistics.median(walls)
    return {
        "step_s": median_s,
        "step_min_s": min(walls),
        "step_max_s": max(walls),
        "step_cpu_s": statistics.median(turn["cpu_s"] for turn in turns),
        "example_us": 1e6 * median_s / BATCH[job],
        "loss": turns[-1]["loss"],
    }


def table(job: str, result: dict[str, dict[str, float]]) -> str:
    """Return one job's rows; the last column says how many times faster anytpu is."""
    rows = [f"{job:8} {'':17} {'us/example':>11} {'ms/step':>10} {'least':>10} {'CPU ms':>10} {'anytpu is':>10}"]
    ours = result.get("anytpu")
    for name, contender in result.items():
        ratio = f"{contender['step_s'] / ours['step_s']:8.2f} x" if ours else ""
        times = " ".join(f"{1e3 * contender[key]:10.3f}" for key in ("step_s", "step_min_s", "step_cpu_s"))
        rows.append(f"{'':8} {name:17} {contender['example_us']:11.1f} {times} {ratio:>10}")
    return "\n".join(rows)


def machine() -> dict[str, Any]:
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}


def versions(name: str) -> dict[str, str]:
    """Return what is installed in an environment and matters here."""
    code = (
        "import importlib.metadata as m, json, platform; names = ('jax', 'jaxlib', 'keras', 'tensorflow-cpu', 'torch', "
        "'numpy'); there = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}; "
        "print(json.dumps({'python': platform.python_version()} | {n: there[n] for n in names if n in there}))"
    )
    return json.loads(subprocess.check_output([python_of(CONTENDERS[name]), "-c", code]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=",".join(STEPS))
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--quick", action="store_true", help="two rounds instead of five to seven")
    parser.add_argument("--output", help="write the figures as JSON here, e.g. benchmarks/results/seed_jobs.json")
    options = parser.parse_args()
    names = options.contenders.split(",")
    record: dict[str, Any] = {"machine": machine(), "load_before": os.getloadavg()[0]}
    record["environments"] = {name: versions(name) for name in names}
    record["jobs"] = {}
    for job in options.jobs.split(","):
        record["jobs"][job] = race(job, 2 if options.quick else ROUNDS[job], names)
        print(table(job, record["jobs"][job]), flush=True)
    record["load_after"] = os.getloadavg()[0]
    if options.output:
        Path(options.output).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
