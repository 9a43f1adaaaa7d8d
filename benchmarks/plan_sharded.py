"""How good plans with `layout=` and `mesh=` are on published sharded steps: `python benchmarks/plan_sharded.py`.

Two comparisons, each written to `benchmarks/results/plan_sharded.json` after each case:
- `plans`: steps of `plan_cases/sharded.py`, none of them fitted, predicted by `tpu.plan` and compared with what was
  published. A compilation takes several minutes of CPU time.
- `schedules` (--schedules): the same steps priced by their schedules. Fitted steps too, each with its shardings by
  hand, as it was fitted, and by a layout: both should be one program.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]
import anytpu as tpu  # noqa: E402  # isort: skip

import plan_cases  # noqa: E402
from anytpu import program as programs  # noqa: E402
from anytpu.planning.forecasts.compiled import predict_compiled  # noqa: E402
from anytpu.planning.jobs.job import PlanJob, jobs_of  # noqa: E402
from anytpu.planning.jobs.settings import PlanSettings  # noqa: E402
from anytpu.planning.records.target import target_named  # noqa: E402
from plan_cases.sharded import CASES, ShardedCase  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "plan_sharded.json"
FITTED = (
    "maxtext_32b_v5p-128",
    "maxtext_16b_v5e-256",
    "llama3_8b_v6e-8",
    "mistral_7b_v6e-8",
    "levanter_1.4b_v5p-32",
    "maxtext_128b_v5p-256",
    "llama2_70b_v5p-1024",
    "maxtext_32b_v5e-256",
    "maxtext_64b_v5p-128",
    "llama3_70b_v7x-128",
)


def main() -> None:
    """Compare each case, print a line for each, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", default=[], help="only cases whose name begins so")
    parser.add_argument("--schedules", action="store_true", help="by schedules, without machine code")
    parser.add_argument("--show", action="store_true", help="only show the record")
    arguments = parser.parse_args()
    kind = "schedules" if arguments.schedules else "plans"
    cases = [*(map(fitted, FITTED) if arguments.schedules else ()), *CASES]
    for case in cases:
        chosen = not arguments.case or case.name.startswith(tuple(arguments.case))
        if chosen and not arguments.show and case.name not in read()[kind]:
            row = scheduled(case) if arguments.schedules else predicted(case)
            record = read()  # Another run may have added to it.
            record[kind][case.name] = row
            RESULTS.write_text(json.dumps(record | {"anytpu": tpu.__version__}, indent=1) + "\n")
            print(line(case.name, row), flush=True)
    rows = read()[kind]
    for name, row in rows.items():
        print(line(name, row))
    errors = [abs(row["error"]) for row in rows.values() if row.get("error") is not None]
    if errors:
        inside = [row["holds"] for row in rows.values() if "holds" in row]
        held = f", {sum(inside)} of {len(inside)} inside their intervals" if inside else ""
        print(f"{len(errors)} steps: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}{held}")


def read() -> dict[str, Any]:
    """Return the record."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"plans": {}, "schedules": {}}


def fitted(name: str) -> ShardedCase:
    """Return a fitted case as one with a layout."""
    case = next(case for case in plan_cases.CASES if case.name == name)
    training = case.build.__self__  # type: ignore[attr-defined]
    return ShardedCase(
        name, case.target, training, case.measured_s, case.arithmetic, case.source, case.options, True, case.differs
    )


def predicted(case: ShardedCase) -> dict[str, Any]:
    """Return the record of a plan."""
    step, specs = case.training.unplaced()
    settings = {"options": dict(case.options), "timeout_s": 7200.0, "name": case.name}
    plan = tpu.plan(step, tpu=case.target, input_specs=specs, layout=case.layout, mesh=case.mesh, **settings)
    (prediction,) = plan.predictions
    row = described(case) | {"predicted_s": prediction.step_s, "hbm_bytes": prediction.hbm_bytes}
    if prediction.time is None:
        return row
    low_s, high_s = prediction.time.interval_s
    error = prediction.step_s / case.measured_s - 1
    return row | {"error": error, "interval_s": [low_s, high_s], "holds": low_s <= case.measured_s <= high_s}


def scheduled(case: ShardedCase) -> dict[str, Any]:
    """Return the record of a schedule by a layout and, for a fitted case, of the one by hand."""
    target, training = target_named(case.target), case.training
    settings = PlanSettings(options=case.options, timeout_s=1800.0, is_trial=True, stage="schedule")
    step, specs = training.unplaced()
    placed = jobs_of(PlanJob(step, specs), case.layout, case.mesh)(target.devices).program()
    time = predict_compiled(placed, target, settings).time
    row = described(case) | {"predicted_s": time and time.step_s}
    if time is not None:
        shares = {kind: round(seconds / time.step_s, 3) for kind, seconds in time.by(lambda op: op.kind).items()}
        row |= {"error": time.step_s / case.measured_s - 1, "shares": shares}
    if case.name in FITTED:
        row["by_hand_s"] = predict_compiled(programs.of(*training.build()), target, settings).step_s
    return row


def described(case: ShardedCase) -> dict[str, Any]:
    """Return what is known of a case before its prediction."""
    return {
        "target": case.target,
        "mesh": {name: size for name, size in case.mesh.items() if size > 1},
        "measured_s": case.measured_s,
        "arithmetic": case.arithmetic,
        "source": case.source,
        "is_kin_fitted": case.kin,
        "differs": case.differs,
    }


def line(name: str, row: dict[str, Any]) -> str:
    """Return a line of the table."""
    said = f"{name:24} measured {row['measured_s']:8.3f} s"
    if not row["predicted_s"]:
        return f"{said}, does not fit as written here"
    said += f", predicted {row['predicted_s']:8.3f} s ({row['error']:+.1%})"
    if "by_hand_s" in row:
        said += f", by hand {row['by_hand_s']:8.3f} s"
    if "holds" in row:
        low_s, high_s = row["interval_s"]
        said += f", {'inside' if row['holds'] else 'OUTSIDE'} {low_s:.3g} to {high_s:.3g} s"
    return said


if __name__ == "__main__":
    main()
