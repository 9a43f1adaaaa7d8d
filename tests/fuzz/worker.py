"""The child process that reads damaged files, one after another, under a cap on its memory.

    python -m fuzz.worker NUMBER

It takes jobs as lines of JSON on its standard input, `{"battery", "seed", "first", "last", "block", "folder"}`, and
writes to the file descriptor NUMBER a line before each case and a line after it. When a case ends the process, the
parent knows which one it was. A battery with `parse` has these lines for each block of cases. A block with a fault is
not counted: the parent then asks for its cases one by one.

Rule: a case may take 1 GiB more than what the process had before it. A reader that asks for more gets a MemoryError,
and that counts as a fault whatever the reader makes of it. The readers do not see this cap: they see the memory of the
machine, as they would without it.
"""

from __future__ import annotations

import collections
import faulthandler
import json
import os
import resource
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from anytpu.files import memory
from fuzz import faulty
from fuzz.battery import Battery, Case, batteries
from fuzz.fingerprints import fingerprint

MAX_GROWTH_BYTES = 2**30
MAX_KEPT_BYTES = 2**29
"""When so much was kept since the first case, the process ends and another one goes on."""
CLEAN = ("right", "read", "refused")
"""Outcomes that are no faults."""
MAX_MESSAGE = 2000
"""Characters of a refusal; a longer one repeats what it was given."""


def main() -> None:
    """Serve jobs until the standard input ends."""
    faulthandler.enable()
    warnings.simplefilter("ignore")
    memory.left_in_limits = lambda: []
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as answers:
        found = {battery.name: battery for battery in (*faulty.BATTERIES, *faulty.IN_BLOCKS)}
        for line in sys.stdin:
            job = json.loads(line)
            if job["battery"] not in found:
                found |= batteries()
            for answer in _answers(found[job["battery"]], job):
                answers.write(json.dumps(answer) + "\n")
            answers.write(json.dumps({"end": True}) + "\n")


def _answers(battery: Battery, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    folder, samples = Path(job["folder"]), battery.samples()
    right = [_prints(battery, _written(battery, folder, content)) for content in samples]
    yield {"samples": len(samples)}
    start_bytes = _data_bytes()
    if job["block"] > 1:
        yield from _blocks(battery, job, samples)
        return
    for number in range(job["first"], job["last"]):
        case = battery.case(job["seed"], number, samples)
        path = _written(battery, folder, case.content)
        yield {"case": number, "path": str(path)}
        before_bytes = _allow_growth()
        outcome, reason = _outcome(battery, case, path.name, lambda at=path: battery.read(at), right)
        grown_bytes = _grown_bytes(before_bytes)
        # The next case is written over this one before the parent has read the answer.
        kept = "" if outcome in CLEAN else str(path.rename(folder / f"fault{number}{battery.suffix}"))
        yield {"outcome": outcome, "reason": reason, "grown_bytes": grown_bytes, "path": kept}
        if _data_bytes() - start_bytes > MAX_KEPT_BYTES:
            os._exit(0)


def _blocks(battery: Battery, job: dict[str, Any], samples: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    assert battery.parse is not None
    parse, start_bytes = battery.parse, _data_bytes()
    for first in range(job["first"], job["last"], job["block"]):
        numbers = range(first, min(first + job["block"], job["last"]))
        yield {"block": first}
        before_bytes = _allow_growth()
        cases = [battery.case(job["seed"], number, samples) for number in numbers]
        outcomes = [_outcome(battery, case, "", lambda of=case: parse(of.content), [])[0] for case in cases]
        yield {"outcomes": collections.Counter(outcomes), "grown_bytes": _grown_bytes(before_bytes)}
        if _data_bytes() - start_bytes > MAX_KEPT_BYTES:
            os._exit(0)


def _written(battery: Battery, folder: Path, content: bytes) -> Path:
    path = folder / f"case{battery.suffix}"
    path.write_bytes(content)
    return path


def _prints(battery: Battery, path: Path) -> str:
    return fingerprint(battery.read(path))


def _outcome(battery: Battery, case: Case, name: str, read: Callable[[], Any], right: list[str]) -> tuple[str, str]:
    """Return the outcome of a case, and the reason of a fault. `name` is the file's."""
    try:
        found = read()
    except battery.refusals as error:
        message = str(error)
        if _is_of_memory(error):
            return "memory", _place(error)
        if battery.names_file and name not in message:
            return "unclear", f"the refusal does not name the file: {message[:200]}"
        if len(message) > MAX_MESSAGE:
            return "unclear", f"the refusal has {len(message)} characters: {message[:200]}"
        return "refused", ""
    except MemoryError as error:
        return "memory", _place(error)
    except BaseException as error:
        return "foreign", _place(error)
    if not battery.is_checked or case.is_resealed:
        return "read", ""
    if fingerprint(found) != right[case.sample]:
        return "wrong", "it was read, and gives another value than the file that was damaged"
    return "right", ""


def _is_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        # Of a text that nests too deeply Python's own parser says MemoryError, and no memory is missing.
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, MemoryError) and not (frames and frames[-1].filename.endswith("/ast.py")):
            return True
        error = error.__cause__ or error.__context__
    return False


def _place(error: BaseException) -> str:
    """Return an error in a line, with the deepest line of anytpu that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/anytpu/" in frame.filename] or frames
    where = f"{'/'.join(Path(ours[-1].filename).parts[-2:])}:{ours[-1].lineno}" if ours else "nowhere"
    return f"{type(error).__name__} at {where}: {str(error)[:200]}"


def _allow_growth() -> int:
    """Cap the memory of this process at 1 GiB more than it has, and return what is resident now."""
    limit = _data_bytes() + MAX_GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    return _peak_bytes()


def _grown_bytes(before_bytes: int) -> int:
    """Return by how much the resident memory grew, and lift the cap."""
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return max(0, _peak_bytes() - before_bytes)


def _data_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
