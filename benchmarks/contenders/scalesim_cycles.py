"""SCALE-Sim as a contender of benchmarks/chip_scalesim.py: a line of JSON in, a line of JSON out.

`{"topology": "<csv>", "configuration": "<cfg>"}` runs the layers of the topology and answers `{"wall_s": ..., "cpu_s":
..., "cycles": [...]}`, its "Total Cycles" of each. Traces are not written. Runs in an environment with scalesim 3.0.0
and numpy below 2.4 (with 2.4 it stops with a TypeError).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from scalesim.scale_sim import scalesim  # type: ignore[import-not-found]

LAYOUT = "Layer name," + "x," * 20  # a heading of 21 columns, and the same layout for every layer: CALC does not use it
LAYOUT_ROW = ",2,2,1,1,16,4,0,1,2,4,5,3,3,2,1,0,4,5,6,7,"


def run(folder: Path, topology: str, configuration: str) -> list[int]:
    """Return the cycles of each layer."""
    names = [line.split(",")[0] for line in topology.splitlines()[1:] if line.strip()]
    texts = {
        "topology.csv": topology,
        "chip.cfg": configuration,
        "layout.csv": "\n".join([LAYOUT, *(name + LAYOUT_ROW for name in names)]) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    simulator = scalesim(
        save_disk_space=True,
        verbose=False,
        config=str(folder / "chip.cfg"),
        topology=str(folder / "topology.csv"),
        layout=str(folder / "layout.csv"),
    )
    simulator.run_scale(top_path=str(folder))
    report = next(folder.rglob("COMPUTE_REPORT.csv")).read_text().splitlines()
    return [int(float(line.split(",")[2])) for line in report[1:] if line.strip()]


def main() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what it prints goes to stderr
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            wall, cpu = time.perf_counter(), time.process_time()
            cycles = run(Path(folder), request["topology"], request["configuration"])
            answer = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "cycles": cycles}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
