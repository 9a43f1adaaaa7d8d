"""Worker processes: the same elements in the same order, and none left when their parent is killed."""

from __future__ import annotations

import json
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import textwrap

PROGRAM = """
import json, os, sys
import numpy as np
import anytpu as tpu

def slow(row):
    return {"row": row, "process": os.getpid(), "bulk": np.full((64, 64), row)}

def build(workers):
    rows = tpu.pipeline.Dataset.from_arrays(np.arange(200)).shuffle(seed=1).map(slow)
    return rows.prefetch(workers=workers).batch(3)

if __name__ == "__main__":
    alone = [batch["row"].tolist() for batch in build(0)]
    walk = iter(build(2))
    batches = [next(walk) for _ in range(4)]
    position = json.loads(json.dumps(walk.get_state()))
    print(json.dumps({
        "processes": sorted({int(process) for batch in batches for process in batch["process"]}),
        "same": [batch["row"].tolist() for batch in batches] == alone[:4],
    }), flush=True)
    assert sys.stdin.readline() == "go on\\n"
    rest = [batch["row"].tolist() for batch in build(2).resume(position)]
    print(json.dumps({"same": rest == alone[4:]}), flush=True)
    walk = iter(tpu.pipeline.Dataset.from_arrays(np.arange(200)).map(slow).repeat().prefetch(workers=2))
    print(json.dumps({"processes": sorted({int(next(walk)["process"]) for _ in range(8)})}), flush=True)
    for element in walk:
        pass
"""
STEPS = """
import numpy as np
import anytpu as tpu
import jax.numpy as jnp

def squared(batch):
    return jnp.asarray(batch) ** 2

def build():
    Dataset = tpu.pipeline.Dataset
    rows = Dataset.range(30).shuffle(30, seed=1, reshuffle_each_iteration=False).concatenate(Dataset.range(4)).skip(1)
    pairs = Dataset.zip((rows.cache(), rows.enumerate().take(20))).map(lambda row, pair: row + 100 * pair[0])
    return pairs.padded_batch(3).map(squared)

if __name__ == "__main__":
    alone = [batch.tolist() for batch in build()]
    for _ in range(2):
        kept = list(build().prefetch(workers=2))
        assert [batch.tolist() for batch in kept] == alone
    # An array in shared memory takes a file descriptor, and cannot be freed late in the exit of a process.
    assert {type(batch) for batch in kept} == {np.ndarray}
    print(len(alone))
"""


def test_workers_read_the_same_and_end_with_their_parent(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        assert run.stdin is not None and run.stdout is not None
        first = json.loads(run.stdout.readline())
        assert first["same"] is True
        assert len(first["processes"]) == 2 and run.pid not in first["processes"]
        run.stdin.write("go on\n")
        run.stdin.flush()
        assert json.loads(run.stdout.readline()) == {"same": True}
        workers = json.loads(run.stdout.readline())["processes"]
        assert len(workers) == 2 and run.pid not in workers
        endings = [os.pidfd_open(worker) for worker in workers]
        run.send_signal(signal.SIGKILL)
    ended = set()
    while len(ended) < 2:
        ready = multiprocessing.connection.wait([ending for ending in endings if ending not in ended], timeout=60)
        assert ready, "a worker outlived its parent by a minute"
        ended |= set(ready)
    for ending in endings:
        os.close(ending)


def test_workers_compute_every_step_that_keeps_an_index(tmp_path):
    program = tmp_path / "steps.py"
    program.write_text(textwrap.dedent(STEPS))
    run = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=110)
    assert (run.stdout, run.stderr, run.returncode) == ("7\n", "", 0)


LEAVING = """
import itertools
import numpy as np
import anytpu as tpu

def doubled(row):
    return 2 * row

if __name__ == "__main__":
    Dataset = tpu.pipeline.Dataset
    walks = [
        iter(Dataset.from_generator(itertools.count).batch(4)),
        iter(Dataset.from_arrays(np.arange(100)).map(doubled).repeat().batch(4)),
        iter(Dataset.from_arrays(np.arange(100)).map(doubled).repeat().batch(4).prefetch(workers=1)),
    ]
    print([next(walk).tolist() for walk in walks])
"""


def test_leaving_in_the_middle_of_walks_is_quiet(tmp_path):
    program = tmp_path / "leaving.py"
    program.write_text(textwrap.dedent(LEAVING))
    run = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=100)
    assert (run.stdout, run.stderr, run.returncode) == ("[[0, 1, 2, 3], [0, 2, 4, 6], [0, 2, 4, 6]]\n", "", 0)
