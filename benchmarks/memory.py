"""What a model that was made, used once and dropped leaves in the process, beside plain Keras and JAX.

    python benchmarks/memory.py [--models 50] [--doors "run, model in the closure"] [--output FILE]

Each front door of `memory_doors.py` runs in a process of its own, and the same work with Keras and JAX alone in
another. After three models to warm up, so many are made, used and dropped. Counted are the objects that live on, and
the arrays, executables, threads, files and processes that are more than before. The resident memory also has what the
allocator and JAX's own caches keep.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

WARM_UP, WIDTH = 3, 2048
RESULT = Path(__file__).parent / "results" / "memory.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=50, help="how many models a front door makes (50)")
    parser.add_argument("--doors", nargs="*", help="only these; the others stay as they are recorded")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(kept(*chosen.child, chosen.models)))
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    found: dict[str, Any] = json.loads(chosen.output.read_text())["doors"] if chosen.output.exists() else {}
    print(f"{'':36} {'':6} {'alive':>6} {'arrays':>7} {'executables':>12} {'MiB a model':>12}")
    for door, side in sides(chosen.doors):
        one = {"models": chosen.models, **measured(door, side, chosen.models)}
        found.setdefault(door, {})[side] = one
        counts = f"{one['alive']:6} {one['arrays']:7} {one['executables']:12} {one['resident_mib_per_model']:12.2f}"
        print(f"{door:36} {side:6} {counts}", flush=True)
        machine = f"{platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}"
        chosen.output.write_text(json.dumps({"machine": machine, "doors": found}, indent=1) + "\n")


def sides(wanted: list[str] | None) -> list[tuple[str, str]]:
    """Return (door, "ours" or "plain") of each measurement."""
    from memory_doors import DOORS

    doors = {name: door for name, door in DOORS.items() if not wanted or name in wanted}
    return [(name, side) for name, door in doors.items() for side in ("ours", "plain") if getattr(door, side)]


def measured(door: str, side: str, models: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", __file__, "--models", str(models), "--child", door, side]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def kept(name: str, side: str, models: int) -> dict[str, Any]:
    """Return what is left of some models of a front door."""
    from memory_doors import DOORS

    use = getattr(DOORS[name], side)
    for _ in range(WARM_UP):
        use(WIDTH)
    before = held()
    gone: list[weakref.ref] = []
    for _ in range(models):
        gone += [weakref.ref(owner) for owner in use(WIDTH)]
        gc.collect()
    after = held()
    rest = {name: after[name] - before[name] for name in after if name != "resident_mib"}
    grown_mib = (after["resident_mib"] - before["resident_mib"]) / models
    return {
        "alive": sum(reference() is not None for reference in gone),
        **rest,
        "resident_mib_per_model": round(grown_mib, 3),
    }


def held() -> dict[str, float]:
    import jax

    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {
        "arrays": len(jax.live_arrays()),
        "executables": len(jax.devices()[0].client.live_executables()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "processes": len(children.split()),
        "resident_mib": resident_mib(),
    }


def resident_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


if __name__ == "__main__":
    main()
