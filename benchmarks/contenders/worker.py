"""The conversation of a contender with benchmarks/seed_jobs.py: a line of JSON in, a line of JSON out.

`{"job": "imdb", "steps": 30}` trains 30 steps and answers `{"wall_s": ..., "cpu_s": ..., "loss": ...}`. The first such
request of a job builds the model and compiles; it is answered likewise, and not counted. The process stays, so that
contenders take turns on the same machine in the same minutes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

Train = Callable[[], float]
"""Trains a fixed number of steps and returns the last loss."""


def serve(jobs: dict[str, Callable[[int], Train]]) -> None:
    """Answer requests until the input ends.

    Args:
        jobs: for each job `make(steps)`, which returns what trains that many steps.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    held: dict[tuple[str, int], Train] = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = request["job"], request["steps"]
        train = held.get(key) or jobs[key[0]](key[1])
        held = {key: train}
        wall, cpu = time.perf_counter(), time.process_time()
        loss = train()
        answer = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "loss": float(loss)}
        print(json.dumps(answer), file=answers, flush=True)
