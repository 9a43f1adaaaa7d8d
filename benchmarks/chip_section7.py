"""Section 7 of the TPU's paper, predicted: what other memories, clocks and arrays would do.

    python benchmarks/chip_section7.py [--output benchmarks/results/chip_section7.json]

The applications are the headline shapes of `chip_table1.py`, compiled anew wherever the array or the accumulators
change, and timed without any delay but those that follow from the paper. A figure is how many times as fast as on the
first TPU. Weighted means use Table 1's mix (MLPs 61 %, LSTMs 29 %, CNNs 5 % of what runs on TPUs), each pair of
applications half of its kind.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

from anytpu.chip.compiler import compile_image
from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import TPU_V1, Design
from anytpu.chip.timing import Timing, time
from chip_table1 import SKETCHES, TABLE_1, Sketch
from chip_table3 import batch_of, without_holds

SHARES = {"MLP0": 30.5, "MLP1": 30.5, "LSTM0": 14.5, "LSTM1": 14.5, "CNN0": 2.5, "CNN1": 2.5}
GDDR5_BYTES_PER_S = 34e9 * 1350 / 250
"""The memory that moves the ridge from 1350 to 250."""


def step(array: int) -> tuple[Timing, Timing]:
    """Return a matrix of 600 x 600 for a batch of 96 (LSTM1's): alone, and among others like it."""
    sketch = Sketch("600 x 600")
    sketch.dense(sketch.input(600), 600)
    image = without_holds(compile_image(sketch.network(), batch=96, design=Design(array=array)))
    return time(image), time(image, back_to_back=True)


def steps_table() -> Iterator[str]:
    for array, paper_us in ((256, 18), (512, 32)):
        alone, many = step(array)
        figures = [(name, 1e6 * t.time_s) for name, t in (("alone", alone), ("among others", many))]
        text = ", ".join(f"{name} {us:.1f} us ({100 * (us / paper_us - 1):+.1f} %)" for name, us in figures)
        steps = alone.weight_bytes // array**2
        yield f"  600 x 600 on {array} x {array}: {steps} steps, the paper {paper_us} us; predicted {text}"


def compiler_of(application: str):
    """Return what compiles an application for a chip."""
    network = next(iter(SKETCHES[application].values()))().network()
    batch = batch_of(application, network)

    def compiled(design: Design) -> Image:
        return compile_image(network, batch=batch, design=design)

    return compiled


def turned(scale: float, *names: str, square: str = "") -> dict[str, float]:
    """Return numbers of the chip, scaled; `square` by the square of it."""
    scales = {**dict.fromkeys(names, scale), **({square: scale**2} if square else {})}
    return {name: type(getattr(TPU_V1, name))(getattr(TPU_V1, name) * factor) for name, factor in scales.items()}


CHIPS: dict[str, dict[str, float]] = {
    **{f"memory x {s:g}": turned(s, "weight_bytes_per_s") for s in (0.25, 0.5, 2, 4)},
    **{f"clock x {s:g}": turned(s, "clock_hz") for s in (0.25, 0.5, 2, 4)},
    **{f"clock+ x {s:g}": turned(s, "clock_hz", "accumulator_rows") for s in (2, 4)},
    **{f"matrix x {s:g}": turned(s, "array") for s in (0.5, 2)},
    **{f"matrix+ x {s:g}": turned(s, "array", square="accumulator_rows") for s in (2,)},
    "FIFO of 8 tiles": {"weight_fifo_tiles": 8},
    "FIFO of 1 tile": {"weight_fifo_tiles": 1},
    "host link x 2": turned(2, "host_bytes_per_s"),
    "TPU': GDDR5": {"weight_bytes_per_s": GDDR5_BYTES_PER_S},
    "TPU': clock x 1.5": turned(1.5, "clock_hz"),
    "TPU': both": {"weight_bytes_per_s": GDDR5_BYTES_PER_S, **turned(1.5, "clock_hz")},
}

SAID = {
    "memory x 4": "3 times as fast on average; MLPs and LSTMs 3, CNNs little",
    "clock x 4": "MLPs and LSTMs nothing, CNNs 2",
    "matrix x 2": "slightly slower for all",
    "matrix+ x 2": "slightly slower for all",
    "TPU': GDDR5": "weighted mean 3.9, geometric 2.6",
    "TPU': clock x 1.5": "almost no change",
    "TPU': both": "weighted mean 3.9, geometric 2.9",
}


def speedups() -> dict[str, dict[str, float]]:
    """Return for each chip how many times as fast each application is, and the means."""
    found: dict[str, dict[str, float]] = {name: {} for name in CHIPS}
    for application in TABLE_1:
        compiled = compiler_of(application)
        image = compiled(TPU_V1)
        base = time(image)
        for name, numbers in CHIPS.items():
            # Only a chip with other memories on it needs another program.
            chip = TPU_V1.turned(numbers)
            program = compiled(chip) if {"array", "accumulator_rows"} & set(numbers) else image
            t = time(program, design=chip)
            found[name][application] = base.time_s / t.time_s
    for row in found.values():
        ratios = [row[application] for application in TABLE_1]
        weighted = sum(SHARES[application] * row[application] for application in TABLE_1) / sum(SHARES.values())
        row["weighted mean"], row["geometric mean"] = weighted, math.prod(ratios) ** (1 / len(ratios))
    return found


def speedup_table(found: dict[str, dict[str, float]]) -> Iterator[str]:
    names = [*TABLE_1, "weighted mean", "geometric mean"]
    yield f"  {'times as fast':18}" + "".join(f"{name.replace(' mean', ''):>10}" for name in names) + "   the paper"
    for chip, row in found.items():
        yield f"  {chip:18}" + "".join(f"{row[name]:10.2f}" for name in names) + f"   {SAID.get(chip, '')}"


def main() -> None:
    """Predict and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the figures as JSON here")
    arguments = parser.parse_args()
    steps, found = list(steps_table()), speedups()
    print("\n".join([*steps, "", *speedup_table(found), "", "Predicted, not measured."]))
    if arguments.output:
        rounded = {chip: {name: round(value, 3) for name, value in row.items()} for chip, row in found.items()}
        seconds = {f"{array}": [t.time_s for t in step(array)] for array in (256, 512)}
        record = {"chip": dataclasses.asdict(TPU_V1), "steps_of_600_by_600_s": seconds, "times_as_fast": rounded}
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
