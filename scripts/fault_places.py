"""Train in folders with faults: a full disk, a read-only one, a file, another job, a newer format, a clock set back.

    sudo python scripts/fault_places.py [--record benchmarks/results/fault_places.json]

Real file systems are mounted, for which the script needs root. Each line of the output is one fault and its outcome.
The exit status is 1 if an outcome is not the promised one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anytpu.train.checkpoint import Checkpoints

# Trains 6 epochs of 2 steps, and waits for a line before each. A checkpoint has 1 MB.
PROGRAM = """
import anytpu as tpu, keras, numpy as np, os, sys, time
if "clock" in sys.argv[2]:
    began, real = time.time(), time.time
    time.time = lambda: began - 1e6 * (real() - began)
keras.utils.set_random_seed(1)
with tpu.connect("virtual", cores=2).scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(50000), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=1)

class Steps(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        if "fork" in sys.argv[2] and epoch == 2 and os.fork() == 0:
            os.close(1); os.close(2)
            time.sleep(600)
        sys.stdin.readline()

saved = tpu.Checkpointer(sys.argv[1], every_s=None, every_steps=2, keep=2)
x = np.random.default_rng(0).normal(size=(8, 2))
model.fit(x, x[:, 0], batch_size=4, epochs=6, verbose=0, callbacks=[Steps()], checkpoint_dir=saved)
print("trained", repr(float(abs(model.layers[0].kernel).sum())))
"""


class Job:
    """A training process, which waits before each epoch.

    Args:
        folder: the folder of its checkpoints.
        settings: "fork" or "clock" for these faults, or "".
    """

    def __init__(self, folder: Path, settings: str = "") -> None:
        command = [sys.executable, "-c", PROGRAM, str(folder), settings]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, **pipes, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})

    def until(self, epoch: int) -> None:
        """Let the job train until an epoch begins."""
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        for line in self.process.stdout:
            if line == f"epoch {epoch}\n":
                return
            self._go_on()
        raise AssertionError(self.process.stderr.read() if self.process.stderr else "")

    def end(self) -> tuple[int, str, str]:
        """Let the job train until its end; return status, stdout and the lines of anytpu on stderr."""
        with contextlib.suppress(BrokenPipeError):
            text, said = self.process.communicate("\n" * 9)
        ours = [line for line in said.splitlines() if "virtual" not in line]
        return self.process.returncode, text.splitlines()[-1] if text else "", "\n".join(ours)

    def _go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def full_disk(folder: Path, expected: str) -> str:
    with mounted(folder, "size=6m"):
        job = Job(folder / "run")
        job.until(3)
        fill(folder / "other")
        job._go_on()
        job.until(5)
        (folder / "other").unlink()
        status, text, said = job.end()
        assert (status, text) == (0, expected), said
        assert said.count("cannot be written") == 1, said
        return check(folder / "run", 12)


def disk_that_stays_full(folder: Path, expected: str) -> str:
    with mounted(folder, "size=6m"):
        job = Job(folder / "run")
        job.until(3)
        fill(folder / "other")
        status, _, said = job.end()
        assert status == 1
        assert "No space left on device" in said.splitlines()[-1]
        assert "The run is complete, and its end is only in the memory of this process" in said.splitlines()[-1]
        check(folder / "run", Checkpoints(folder / "run").latest() or 0)
        (folder / "other").unlink()
        status, text, said = Job(folder / "run").end()
        assert (status, text) == (0, expected), said
        return f"{check(folder / 'run', 12)}, after an error and a restart"


def disk_that_becomes_read_only(folder: Path, expected: str) -> str:
    with mounted(folder, "size=20m"):
        job = Job(folder / "run")
        job.until(3)
        # The lock's file is open for writing, so the mount is shadowed instead of changed.
        subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        try:
            status, _, said = job.end()
        finally:
            subprocess.run(["umount", folder], check=True)
        assert status == 1, said
        assert "Read-only file system" in said.splitlines()[-1], said
        status, text, said = Job(folder / "run").end()
        assert (status, text) == (0, expected), said
        return f"{check(folder / 'run', 12)}, after an error and a restart"


def read_only_disk(folder: Path, expected: str) -> str:
    with mounted(folder, "size=6m,ro"):
        status, text, said = Job(folder / "run").end()
    return refused(status, text, said, "checkpoints cannot be kept in .*: Read-only file system")


def folder_that_is_a_file(folder: Path, expected: str) -> str:
    (folder / "run").write_text("x")
    return refused(*Job(folder / "run").end(), "checkpoints cannot be kept in .*is a file")


def newer_format(folder: Path, expected: str) -> str:
    assert Job(folder / "run").end()[0] == 0
    manifest = folder / "run" / "12" / "manifest.json"
    fields = json.loads(manifest.read_text())
    newer = json.dumps({**fields, "format": fields["format"] + 1, "compression": "of a later release"})
    manifest.write_text(newer)
    outcome = refused(*Job(folder / "run").end(), "install a newer one with pip install --upgrade anytpu")
    assert manifest.read_text() == newer
    return outcome


def two_jobs(folder: Path, expected: str) -> str:
    first = Job(folder / "run")
    first.until(2)
    outcome = refused(*Job(folder / "run").end(), f"another job writes .* process {first.process.pid} on ")
    first.process.send_signal(signal.SIGKILL)
    first.process.communicate()
    status, text, said = Job(folder / "run").end()
    assert (status, text) == (0, expected), said
    return f"{outcome}; the lock of a dead job is taken over"


def forked_child_survives(folder: Path, expected: str) -> str:
    first = Job(folder / "run", "fork")
    first.until(2)
    first._go_on()
    first.until(3)
    child = next(int(each) for each in children(first.process.pid))
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    try:
        status, text, said = Job(folder / "run").end()
    finally:
        os.kill(child, signal.SIGKILL)
    assert (status, text) == (0, expected), said
    return f"{check(folder / 'run', 12)}, while the child of the killed job lives"


def clock_set_back(folder: Path, expected: str) -> str:
    first = Job(folder / "run", "clock")
    first.until(3)
    first.process.send_signal(signal.SIGKILL)
    first.process.communicate()
    status, text, said = Job(folder / "run", "clock").end()
    assert (status, text) == (0, expected), said
    return check(folder / "run", 12)


FAULTS = (
    full_disk,
    disk_that_stays_full,
    disk_that_becomes_read_only,
    read_only_disk,
    folder_that_is_a_file,
    newer_format,
    two_jobs,
    forked_child_survives,
    clock_set_back,
)


def refused(status: int, text: str, said: str, pattern: str) -> str:
    """Check that a job ended with our error before its first step."""
    assert status == 1
    assert text in ("", "epoch 0"), text
    last = said.splitlines()[-1]
    assert re.search(r"anytpu\.errors\.\w+Error: .*(" + pattern + ")", last), last
    return "refused before the first step"


def check(folder: Path, newest: int) -> str:
    """Check that the newest checkpoint is the expected one, that all are whole, and that nothing else is left."""
    checkpoints = Checkpoints(folder)
    assert checkpoints.latest() == newest, checkpoints.steps()
    for step in checkpoints.steps():
        checkpoints.load(step)
    rest = {path.name for path in folder.iterdir()} - {str(step) for step in checkpoints.steps()} - {".writer.json"}
    assert not rest, rest
    return "equal to a whole run" if newest == 12 else "earlier checkpoints whole"


def fill(path: Path) -> None:
    """Fill the disk."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**12))


def children(process_id: int) -> list[str]:
    return Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount a file system in memory at a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path, help="a JSON file for the outcomes")
    options = parser.parse_args()
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        status, expected, said = Job(Path(folder, "whole")).end()
        assert status == 0, said
    for fault in FAULTS:
        name = fault.__name__.replace("_", " ")
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcomes[name] = fault(Path(folder), expected)
            except AssertionError as error:
                outcomes[name] = f"FAULT: {error!s:.2000}"
        print(f"{name}: {outcomes[name]}", flush=True)
    if options.record:
        options.record.write_text(json.dumps(outcomes, indent=1) + "\n")
    return 1 if any(outcome.startswith("FAULT") for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
