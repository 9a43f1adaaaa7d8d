"""The program of test_killed_at_every_file_operation: saves in a child that is killed, and looks at what it leaves."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

from anytpu.train.checkpoint import Checkpoints

OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.listdir", "shutil.rmtree")
STEPS = (1, 2, 3)


def arrays(step: int) -> dict[str, np.ndarray]:
    return {"a": np.full(1000, step), "b": np.full((3, 5), step / 7)}


def save(folder: str, point: int) -> None:
    """Save three steps, and end at an operation on a file."""
    seen = 0

    def count(event: str, arguments: tuple) -> None:
        nonlocal seen
        if event in OPERATIONS:
            seen += 1
            if seen == point:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    checkpoints = Checkpoints(folder, keep=2)
    with checkpoints.writing():
        for step in STEPS:
            checkpoints.save(step, arrays(step), host={"step": step})


def fault(folder: str) -> str | None:
    """Return the fault in what a killed process has left."""
    checkpoints = Checkpoints(folder, keep=2)
    found = checkpoints.load_newest()
    for step in checkpoints.steps():
        loaded = checkpoints.load(step)
        if any(not np.array_equal(loaded.values[name], value) for name, value in arrays(step).items()):
            return f"step {step} has other values"
    if (found and found.step) != checkpoints.latest():
        return "the newest is not whole"
    with checkpoints.writing():
        checkpoints.save(9, arrays(9))
    left = [name for name in os.listdir(folder) if name not in (*map(str, checkpoints.steps()), ".writer.json")]
    return f"{left} are left" if left else None


def main() -> None:
    faults, point = [], 0
    while True:
        point += 1
        with tempfile.TemporaryDirectory() as folder:
            child = os.fork()
            if child == 0:
                save(str(Path(folder) / "run"), point)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if os.path.isdir(Path(folder) / "run") and (found := fault(str(Path(folder) / "run"))):
                faults.append(f"killed at {point}: {found}")
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
    print("\n".join([f"{point - 1} points, {len(faults)} faults", *faults]))


if __name__ == "__main__":
    main()
