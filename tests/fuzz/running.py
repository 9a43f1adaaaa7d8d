"""Batteries run in child processes: what became of each case, also of one that ended its process."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuzz.battery import Battery

TESTS = Path(__file__).parents[1]
START_S = 120.0
"""The seconds that a child may take to start and to read the undamaged samples."""
BLOCK_S = 120.0
"""The seconds that a block may take; after them its cases run one by one, each with its own limit."""
FAULTS = ("wrong", "foreign", "unclear", "crash", "memory", "slow")
"""Outcomes that are faults; the others are "right", "read" (its value is not compared) and "refused"."""
BLOCK = 500
"""Number of cases in a block, for batteries that need no files."""
KEPT_A_FAULT = 3
"""Files kept of each kind of fault."""


@dataclasses.dataclass
class Result:
    """What became of the cases of a battery.

    Attributes:
        battery: its name.
        seed: that drew the cases.
        cases: the number of cases that were run.
        outcomes: the number of cases by outcome: right, read, refused, wrong, foreign, unclear, crash, memory, slow.
        faults: the number of cases by outcome and reason, of those that are faults.
        kept: the files that show a fault.
        largest_growth_mib: the largest growth of the resident memory in a case, in MiB.
        elapsed_s: seconds from the first case to the last, with the starts of the child.
    """

    battery: str
    seed: int
    cases: int = 0
    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    faults: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    kept: list[str] = dataclasses.field(default_factory=list)
    largest_growth_mib: float = 0.0
    elapsed_s: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether no case shows a fault."""
        return not any(self.outcomes[name] for name in FAULTS)


class Runner:
    """Runs batteries, one case at a time, in a child that is started again when a case ends it.

    Args:
        keep: the folder for files that show a fault; None: keep none.
    """

    def __init__(self, keep: Path | None = None) -> None:
        self._keep, self._child = keep, None
        self._folder = Path(tempfile.mkdtemp(prefix="anytpu-fuzz-"))

    def run(self, battery: Battery, count: int, seed: int = 0) -> Result:
        """Run the cases 0 to `count` of a battery."""
        result, began_s = Result(battery.name, seed), time.perf_counter()
        while result.cases < count:
            if battery.parse is not None and count - result.cases >= BLOCK:
                self._run_blocks(battery, count, result)
                # A block with a fault is left, or the rest.
                self._run_on(battery, min(result.cases + BLOCK, count), result)
            else:
                self._run_on(battery, count, result)
        result.elapsed_s = round(time.perf_counter() - began_s, 1)
        return result

    def close(self) -> None:
        """End the child and remove its files."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run_blocks(self, battery: Battery, last: int, result: Result) -> None:
        """Run blocks of cases until they are done, or one has a fault, which is not counted."""
        child = self._child = self._child or _Child(self._folder)
        child.send({"battery": battery.name, "seed": result.seed, "first": result.cases, "last": last, "block": BLOCK})
        limit_s = START_S
        while (answer := child.answer(limit_s)) is not None and not answer.get("end"):
            limit_s = BLOCK_S if "block" in answer else START_S
            if "outcomes" in answer:
                outcomes = collections.Counter(answer["outcomes"])
                if any(outcomes[name] for name in FAULTS):
                    self._end()
                    return
                result.outcomes += outcomes
                result.cases += outcomes.total()
                result.largest_growth_mib = max(result.largest_growth_mib, round(answer["grown_bytes"] / 2**20, 1))
        if answer is None:
            self._end()

    def _run_on(self, battery: Battery, last: int, result: Result) -> None:
        """Run cases until they are done or one of them ends the child."""
        child = self._child = self._child or _Child(self._folder)
        child.send({"battery": battery.name, "seed": result.seed, "first": result.cases, "last": last, "block": 1})
        path = ""
        while True:
            answer = child.answer(battery.limit_s if path else START_S)
            if answer is None:
                break
            if answer.get("end"):
                return
            path = answer["path"] if "case" in answer else ""
            if "outcome" in answer:
                result.largest_growth_mib = max(result.largest_growth_mib, round(answer["grown_bytes"] / 2**20, 1))
                self._count(battery, result, answer["outcome"], answer["reason"], answer["path"])
        is_slow, last_words = child.is_alive(), child.last_words()
        self._end()
        if path:
            reason = f"no answer in {battery.limit_s:g} s" if is_slow else last_words
            self._count(battery, result, "slow" if is_slow else "crash", reason, path)
        elif is_slow or last_words:
            raise RuntimeError(f"the samples of {battery.name!r} cannot be read: {last_words}")

    def _count(self, battery: Battery, result: Result, outcome: str, reason: str, path: str) -> None:
        number, result.cases = result.cases, result.cases + 1
        result.outcomes[outcome] += 1
        if outcome not in FAULTS:
            return
        kind = f"{outcome}: {reason}".replace(str(self._folder), "")
        result.faults[kind] += 1
        if self._keep is not None and result.faults[kind] <= KEPT_A_FAULT:
            self._keep.mkdir(parents=True, exist_ok=True)
            kept = self._keep / f"{battery.name}-{result.seed}-{number}-{outcome}{battery.suffix}"
            shutil.copy(path, kept)
            result.kept.append(str(kept))
        Path(path).unlink()

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None


class _Child:
    """A process that runs `worker.py`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ours, theirs = os.pipe()
        paths = [
            str(TESTS),
            str(TESTS.parent / "src"),
            *([os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []),
        ]
        settings = {
            "PYTHONPATH": os.pathsep.join(paths),
            "JAX_PLATFORMS": "cpu",
            "MALLOC_ARENA_MAX": "2",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        self._errors = (folder / "stderr").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.worker", str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=[theirs],
            env={**os.environ, **settings},
            start_new_session=True,
        )
        os.close(theirs)
        self._answers, self._read = ours, b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(ours, selectors.EVENT_READ)

    def send(self, job: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**job, "folder": str(self._folder)}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, limit_s: float) -> dict[str, Any] | None:
        """Return the next answer, or None when there is none: the child ended, or took too long."""
        until_s = time.monotonic() + limit_s
        while b"\n" not in self._read:
            if not self._selector.select(max(0.0, until_s - time.monotonic())):
                return None
            piece = os.read(self._answers, 65536)
            if not piece:
                self._process.wait()
                return None
            self._read += piece
        line, self._read = self._read.split(b"\n", 1)
        return json.loads(line)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        """Return how the child ended, with the first lines that it wrote to its standard error; "" if it ended well."""
        if self._process.poll() in (None, 0):
            return ""
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"exit status {self._process.returncode}: {' | '.join(lines[-3:])[:300]}"

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._selector.close()
        os.close(self._answers)
        self._errors.close()


def summary(results: Sequence[Result]) -> list[str]:
    """Return a line for each result, and its faults below it."""
    lines = [
        f"{'battery':16} {'cases':>7} {'right':>7} {'read':>7} {'refused':>8} {'faults':>7} {'MiB':>7} {'seconds':>8}"
    ]
    for result in results:
        faults = sum(result.outcomes[name] for name in FAULTS)
        clean = f"{result.outcomes['right']:7} {result.outcomes['read']:7} {result.outcomes['refused']:8}"
        lines.append(
            f"{result.battery:16} {result.cases:7} {clean} {faults:7} {result.largest_growth_mib:7.0f} "
            f"{result.elapsed_s:8.0f}"
        )
        lines += [f"    {count:6} {kind}" for kind, count in result.faults.most_common(12)]
    return lines
