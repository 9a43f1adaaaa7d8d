"""AlexNet's five convolutions: how long it takes to time them, beside SCALE-Sim, and how many cycles each says.

    python benchmarks/chip_scalesim.py [--scalesim-python VENV/bin/python] [--rounds 5] [--output FILE]

VENV is made by `scripts/benchmark_venvs` (.venv-benchmarks/scalesim, the default). Contenders take turns, round by
round, in one run: SCALE-Sim itself (a process that stays; 256 x 256, weight stationary, mode CALC, without traces), our
mode with its rules (`scalesim_rules.py`), and our model of the first TPU (`chip.timing.time` of programs that were
compiled before; what compiling takes is told beside).

The cycles differ because the question does. SCALE-Sim's array loads a tile, streams, and drains, one after the other,
from memories that are never late. The first TPU shifts a tile in while the one before works and drains only at the end,
but its tiles come from DRAM, 1349 cycles each: for one picture at a time most of its cycles are waits for weights. Its
count here has the picture's way over the host's link in it, and back: most of the first convolution's cycles, whose
three channels take 32 bytes a position. It packs the taps of those channels side by side, two tiles as in SCALE-Sim;
the others go tap by tap where that is as quick.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time as clock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import scalesim_rules as scalesim
from anytpu.chip.compiler import compile_image
from anytpu.chip.graph.nodes import Convolution, Network, Port, Quantization
from anytpu.chip.image.image import Image
from anytpu.chip.timing import Timing, time
from machine import cpu_name

HERE = Path(__file__).parent
TOPOLOGY = """\
Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,
Conv1, 224, 224, 11, 11, 3, 96, 4,
Conv2, 27, 27, 5, 5, 96, 256, 1,
Conv3, 13, 13, 3, 3, 256, 384, 1,
Conv4, 13, 13, 3, 3, 384, 384, 1,
Conv5, 13, 13, 3, 3, 384, 256, 1,
"""
"""As SCALE-Sim's own topologies/conv_nets/alexnet.csv; it rounds the number of windows up, and so does `network_of`."""

CONFIGURATION = """\
[general]
run_name = tpu_v1
[architecture_presets]
ArrayHeight: 256
ArrayWidth: 256
IfmapSramSzkB: 12288
FilterSramSzkB: 6144
OfmapSramSzkB: 6144
IfmapOffset: 0
FilterOffset: 10000000
OfmapOffset: 20000000
Dataflow: ws
Bandwidth: 48
ReadRequestBuffer: 512
WriteRequestBuffer: 512
[layout]
IfmapCustomLayout: False
IfmapSRAMBankBandwidth: 10
IfmapSRAMBankNum: 10
IfmapSRAMBankPort: 2
FilterCustomLayout: False
FilterSRAMBankBandwidth: 10
FilterSRAMBankNum: 10
FilterSRAMBankPort: 2
[sparsity]
SparsitySupport: false
SparseRep: ellpack_block
OptimizedMapping: false
BlockSize: 8
RandomNumberGeneratorSeed: 40
[run_presets]
InterfaceBandwidth: CALC
UseRamulatorTrace: False
"""


def network_of(line: str) -> Network:
    """Return the one layer of a line of the topology, for one picture."""
    name, *fields = [field.strip() for field in line.split(",") if field.strip()]
    height, width, kernel_height, kernel_width, channels, filters, stride = map(int, fields)
    out = [-(-(size - kernel + stride) // stride) for size, kernel in ((height, kernel_height), (width, kernel_width))]
    more = [(out[0] - 1) * stride + kernel_height - height, (out[1] - 1) * stride + kernel_width - width]
    layer = Convolution(
        name,
        name,
        ("x",),
        "y",
        np.ones((kernel_height, kernel_width, channels, filters), np.int8),
        np.full(filters, 2.0**-8, np.float32),
        np.zeros(filters, np.int32),
        (stride, stride),
        (1, 1),
        ((0, more[0]), (0, more[1])),
        1,
        0,
        127,
    )
    shapes = {"x": (height, width, channels), "y": (out[0], out[1], filters)}
    same = dict.fromkeys(shapes, Quantization(2.0**-4))
    return Network(name, (Port("x", shapes["x"]),), (Port("y", shapes["y"]),), shapes, same, (layer,))


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return wall and CPU seconds of some work, and what it returns."""
    wall, cpu = clock.perf_counter(), clock.process_time()
    result = work()
    return clock.perf_counter() - wall, clock.process_time() - cpu, result


def same_rules(folder: Path) -> list[int]:
    """Return the cycles by SCALE-Sim's rules, reading its files each time as it does."""
    design = scalesim.read_configuration(folder / "chip.cfg")
    return [scalesim.cycles(layer, design) for layer in scalesim.read_topology(folder / "topology.csv")]


def summary(turns: list[tuple[float, float]]) -> dict[str, float]:
    wall = [turn[0] for turn in turns]
    return {
        "wall_s": statistics.median(wall),
        "least_wall_s": min(wall),
        "most_wall_s": max(wall),
        "cpu_s": statistics.median(turn[1] for turn in turns),
    }


def measure(python: str, rounds: int, images: list[Image], folder: Path) -> dict[str, Any]:
    """Let the contenders take turns."""
    (folder / "topology.csv").write_text(TOPOLOGY)
    (folder / "chip.cfg").write_text(CONFIGURATION)
    script = HERE / "contenders" / "scalesim_cycles.py"
    with subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin and peer.stdout
        turns: dict[str, list[tuple[float, float]]] = {"SCALE-Sim": [], "its rules": [], "model": []}
        found: dict[str, Any] = {}
        for _ in range(rounds):
            peer.stdin.write(json.dumps({"topology": TOPOLOGY, "configuration": CONFIGURATION}) + "\n")
            peer.stdin.flush()
            answer = json.loads(peer.stdout.readline())
            turns["SCALE-Sim"].append((answer["wall_s"], answer["cpu_s"]))
            found["SCALE-Sim"] = answer["cycles"]
            for name, work in (
                ("its rules", lambda: same_rules(folder)),
                ("model", lambda: [time(image) for image in images]),
            ):
                wall_s, cpu_s, found[name] = timed(work)
                turns[name].append((wall_s, cpu_s))
        peer.stdin.close()
    return {"seconds": {name: summary(contender_turns) for name, contender_turns in turns.items()}, **found}


def report(found: dict[str, Any], compile_s: float) -> None:
    print("To time AlexNet's five convolutions      median s      least       most        CPU")
    for name, figure in found["seconds"].items():
        figures = " ".join(f"{figure[key]:10.5f}" for key in ("wall_s", "least_wall_s", "most_wall_s", "cpu_s"))
        print(f"  {name:36} {figures}")
    print(f"  (compiling the five programs for the model: {compile_s:.3f} s, once)")
    ours, peer = found["seconds"]["model"], found["seconds"]["SCALE-Sim"]
    print(f"  the model takes SCALE-Sim's CPU time divided by {peer['cpu_s'] / ours['cpu_s']:,.0f}\n")
    print("Cycles      SCALE-Sim  its rules   the first TPU = active + stall + shift + other")
    for number, t in enumerate(found["model"]):
        causes = f"{t.active_cycles:7.0f} {t.stall_cycles:8.0f} {t.shift_cycles:7.0f} {t.other_cycles:7.0f}"
        counts = f"{found['SCALE-Sim'][number]:10,} {found['its rules'][number]:10,}"
        print(f"  {t.name:8} {counts}   {t.cycles:13,.0f} {causes}")


def record_of(found: dict[str, Any], compile_s: float, rounds: int) -> dict[str, Any]:
    def cycles(t: Timing) -> dict[str, float]:
        names = ("cycles", "active_cycles", "stall_cycles", "shift_cycles", "other_cycles")
        return {name: getattr(t, name) for name in names}

    return {
        "machine": f"{cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}, scalesim 3.0.0",
        "rounds": rounds,
        "seconds": found["seconds"],
        "compile_s": compile_s,
        "scalesim_cycles": found["SCALE-Sim"],
        "same_rules_cycles": found["its rules"],
        "first_tpu": {t.name: cycles(t) for t in found["model"]},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = HERE.parent / ".venv-benchmarks" / "scalesim" / "bin" / "python"
    parser.add_argument("--scalesim-python", default=str(default), help="the Python of an environment with scalesim")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="write the figures as JSON here")
    arguments = parser.parse_args()
    networks = [network_of(line) for line in TOPOLOGY.splitlines()[1:]]
    compile_s, _, images = timed(lambda: [compile_image(network) for network in networks])
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments.scalesim_python, arguments.rounds, images, Path(folder))
    report(found, compile_s)
    if arguments.output:
        arguments.output.write_text(json.dumps(record_of(found, compile_s, arguments.rounds), indent=1) + "\n")


if __name__ == "__main__":
    main()
