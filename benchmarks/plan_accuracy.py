"""How good `plan` is on published measurements: `python benchmarks/plan_accuracy.py [--case NAME ...] [--quick]`.

Each case of `plan_cases` is compiled by the TPU's compiler (its answers are kept, so that a second run is quick) and
priced three ways: with the calibration that is shipped, which has seen all cases; with one that was fitted without the
case (leave one out); and with one that was fitted without its whole family (leave the family out: the same program on
other slices is gone too). The interval is what `plan` gives (`planning.timing.uncertainty`), from the family-left-out
errors of all other steps; a step has to lie in it around the prediction that knows nothing of its family.

Writes `benchmarks/results/plan_accuracy.json`. `--only row_share,small_start_s --case llama_,gemma` fits some shared
parameters on some cases, as `calibrate_plan.py` does, and writes the rows of these cases only.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "scripts")]
import anytpu as tpu  # noqa: E402  # isort: skip

import calibrate_plan as calibration  # noqa: E402
import numpy as np  # noqa: E402
from calibrate_plan import Seen  # noqa: E402

import plan_cases  # noqa: E402
from plan_cases.case import Case  # noqa: E402
from plan_cases.decode import CASES as DECODE  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "plan_accuracy.json"
KINDS = ("step", "decode", "matmul", "copy", "collective")


@dataclasses.dataclass(frozen=True)
class Row:
    """What was predicted for a case, and what was measured.

    Attributes:
        name: of the case.
        kind: of the case; "decode" of a step that generates a token.
        target: the slice.
        measured_s: what was measured, seconds.
        fitted: predicted over measured less 1, with the calibration that saw the case.
        left_out: the same without the case.
        family_out: the same without the case's family.
        half_width: half of the interval, as a part of the prediction.
        holds: whether the interval around the prediction holds what was measured: of a step, the prediction without
            its family; of a micro-benchmark, the one without itself.
    """

    name: str
    kind: str
    target: str
    measured_s: float
    fitted: float
    left_out: float
    family_out: float
    half_width: float
    holds: bool


def main() -> None:
    """Predict every case, print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", default=[], help="show only cases whose name begins so")
    parser.add_argument("--quick", action="store_true", help="only the micro-benchmarks and one ResNet-50")
    parser.add_argument("--only", default="", help="fit only these shared parameters, by commas, on the shown cases")
    parser.add_argument("--kept", action="store_true", help="only cases whose module was compiled before")
    parser.add_argument("--modules", type=Path, default=Path("/tmp/anytpu-plan-cases"), help="where modules are kept")
    given = parser.parse_args()
    shown = tuple(given.case) or ("",)
    cases = [case for case in plan_cases.CASES if not given.quick or is_quick(case)]
    cases = [case for case in cases if not given.only or case.name.startswith(shown)]
    seen = [entry for case in cases if (entry := calibration.look(case, given.modules, given.kept))]
    missing = sorted({case.name for case in cases} - {entry.case.name for entry in seen})
    rows = [row for row in compared(seen, given.only) if row.name.startswith(shown)]
    show(rows, missing)
    if given.only:
        shipped = json.loads(RESULTS.read_text())
        rows = merged([Row(**row) for row in shipped["cases"]], rows)
        missing = sorted({*shipped["not_compiled"], *missing} - {row.name for row in rows})
    if given.only or (not given.case and not given.quick):
        record = {"anytpu": tpu.__version__, "cases": [dataclasses.asdict(row) for row in rows]}
        summaries = {kind: summary(rows, kind) for kind in KINDS}
        RESULTS.write_text(json.dumps(record | {"not_compiled": missing, "summary": summaries}, indent=1) + "\n")


def merged(rows: list[Row], new: list[Row]) -> list[Row]:
    """Return the rows, in the order of the cases, with new ones in place of those of the same name."""
    by_name = {row.name: row for row in (*rows, *new)}
    return [by_name[case.name] for case in plan_cases.CASES if case.name in by_name]


def is_quick(case: Case) -> bool:
    """Tell whether a case is compiled in seconds, or is the one step that is worth waiting for."""
    return case.kind != "step" or case.name == "resnet50_v2-8"


def compared(seen: list[Seen], only: str = "") -> list[Row]:
    """Return a row for each case: fitted on all, on all others, on all other families."""
    start, knobs = calibration.begun(seen, only)
    fitted, jacobian, misses = calibration.fit(seen, knobs, start)
    moved = np.array([math.log(calibration.value(fitted, k) / calibration.value(start, k)) for k in knobs])

    def without(is_left: Callable[[Case, Case], bool]) -> list[float]:
        off = []
        for row, entry in enumerate(seen):
            used = np.array([float(not is_left(other.case, entry.case)) for other in seen])
            change = calibration.solved(seen, knobs, jacobian, misses, moved, used)
            off.append(float(misses[row] + jacobian[row] @ change))
        return off

    alone = without(lambda other, case: other.name == case.name)
    family = without(lambda other, case: other.family == case.family)
    parts = calibration.parts_of(seen, fitted)
    intervals = [calibration.bounds(seen, np.array(family), parts, at, fitted) for at in range(len(seen))]
    return [_row(entry, float(misses[at]), alone[at], family[at], intervals[at]) for at, entry in enumerate(seen)]


def _row(entry: Seen, miss: float, alone: float, family: float, interval: tuple[float, float]) -> Row:
    low, high = interval
    return Row(
        name=entry.case.name,
        kind="decode" if entry.case in DECODE else entry.case.kind,
        target=entry.case.target,
        measured_s=entry.case.measured_s,
        fitted=math.expm1(miss),
        left_out=math.expm1(alone),
        family_out=math.expm1(family),
        half_width=calibration.half_widths([interval])[0],
        holds=low <= -(family if calibration.is_step(entry) else alone) <= high,
    )


def summary(rows: list[Row], kind: str) -> dict[str, Any]:
    """Return how good the predictions of one kind of case are."""
    chosen = [row for row in rows if row.kind == kind]
    if not chosen:
        return {"cases": 0}
    errors, kin = [abs(row.left_out) for row in chosen], [abs(row.family_out) for row in chosen]
    return {
        "cases": len(chosen),
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "median_error_family_out": statistics.median(kin),
        "worst_error_family_out": max(kin),
        "held": sum(row.holds for row in chosen) / len(chosen),
        "median_half_width": statistics.median(row.half_width for row in chosen),
    }


def show(rows: list[Row], missing: list[str]) -> None:
    """Print the table and a line for each kind of case."""
    heads = ("measured", "predicted", "left out", "family", "fitted")
    print(f"{'case':28} {'slice':14} {heads[0]:>11} {heads[1]:>11} {heads[2]:>9} {heads[3]:>8} {heads[4]:>8}  interval")
    for row in rows:
        predicted_s = row.measured_s * (1 + row.left_out)
        print(
            f"{row.name:28} {row.target:14} {row.measured_s:9.4g} s {predicted_s:9.4g} s {row.left_out:+9.1%} "
            f"{row.family_out:+8.1%} {row.fitted:+8.1%}  +-{row.half_width:.0%} {'holds' if row.holds else 'MISSES'}"
        )
    for kind in KINDS:
        if (found := summary(rows, kind))["cases"]:
            print(
                f"{kind}: {found['cases']} cases, left out: median error {found['median_error']:.1%}, worst "
                f"{found['worst_error']:.1%} (family left out: {found['median_error_family_out']:.1%}, "
                f"{found['worst_error_family_out']:.1%}), {found['held']:.0%} held at a median half-width of "
                f"{found['median_half_width']:.0%}"
            )
    for name in missing:
        print(f"{name}: not compiled")


if __name__ == "__main__":
    main()
