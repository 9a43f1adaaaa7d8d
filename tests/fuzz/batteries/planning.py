"""What plans read: the compiler's text, stored runs and predictions, corrections, locks, prices."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import plan_samples
from anytpu.planning import calibration, hlo, runs
from anytpu.planning.calibration import LocalFactor
from anytpu.planning.costs.prices import read_prices
from anytpu.planning.forecasts.compiled import peak_flops_per_s
from anytpu.planning.memory.liveness import peak_of
from anytpu.planning.records.lock import lock_of, read_lock
from anytpu.planning.records.target import target_named
from anytpu.planning.runs import MeasuredRun, StoredForecast
from anytpu.planning.timing import step_time
from fuzz.battery import Battery
from fuzz.damage import JSON, TEXT

SNIPPETS = Path(__file__).parents[2] / "planning/hlo/snippets"
TARGETS = {"v3": "v3-8", "v4": "v4-8", "v5e": "v5e-4", "v7x": "v7x-8"}


def modules() -> list[bytes]:
    """Return modules as the compiler printed them, those that are whole."""
    return [path.read_bytes() for path in sorted(SNIPPETS.glob("*.hlo")) if not path.stem.endswith("_entry")]


def read_module(path: Path) -> Any:
    """Price a module and measure its memory, as a plan does."""
    target = target_named("v5e-4")
    module = hlo.parse(path.read_bytes().decode(errors="replace"))
    time, peak = step_time(module, target), peak_of(module)
    sources = [
        str(module.source_of(instruction))
        for each in module.computations.values()
        for instruction in each.instructions.values()
    ]
    return [time.step_s, len(time.ops), peak.bytes, peak_flops_per_s(module, target), sources, sorted(module.donated)]


RUN = MeasuredRun(
    "a", "2026-11-21T06:00:00+00:00", "sum/train", "p", "v3", "v3-8", 8, 64, 10, 0.2, 8, {"jax": "0.10.2"}
)
FORECAST = StoredForecast("p", "v3-8", 8, 0.15, 1e-4)


def lines_of(*records: Any) -> bytes:
    """Return records as a log has them, a line each."""
    return "".join(json.dumps(dataclasses.asdict(record)) + "\n" for record in records).encode()


def logs() -> list[bytes]:
    """Return logs of one run and of several."""
    others = [dataclasses.replace(RUN, run=str(number), chip="v4", batch_size=None) for number in range(3)]
    return [lines_of(RUN), lines_of(RUN, dataclasses.replace(RUN, step_s=0.3), *others)]


def read_log(path: Path) -> Any:
    """Read a log of runs, and correct predictions by it, as `anytpu plan --calibrate` does."""
    import io

    from rich.console import Console

    from anytpu.report.calibration import print_calibration

    forecasts = path.with_name("forecasts.jsonl")
    forecasts.write_bytes(lines_of(FORECAST))
    found = calibration.calibrate(runs.read_runs(path, forecasts))
    print_calibration(Console(file=io.StringIO()), found)
    return [[dataclasses.asdict(run) for run in found.runs], [dataclasses.asdict(factor) for factor in found.factors]]


def read_forecasts(path: Path) -> Any:
    """Read a log of predictions beside a run that they are for."""
    kept = path.with_name("runs.jsonl")
    kept.write_bytes(lines_of(RUN))
    found = calibration.calibrate(runs.read_runs(kept, path))
    return [run.error for run in found.runs] + [factor.factor for factor in found.factors]


FACTORS = {"factors": [dataclasses.asdict(LocalFactor("v3", 1.07, 0.1, 4, 12))]}
PRICES = b"""chip,usd_per_chip_hour,spot_usd_per_chip_hour,preemptions_per_hour,date,source,note
v3,1.5,0.5,0.02,2026-11-01,our contract,"for a year, prepaid"
v6e,2.5,,,,,
"""


def read_factors(path: Path) -> Any:
    """Read the corrections of this machine."""
    return [dataclasses.asdict(factor) for factor in calibration.read_factors(path)]


def read_table(path: Path) -> Any:
    """Read a table of prices."""
    return {name: dataclasses.asdict(price) for name, price in read_prices(path).items()}


LOCKED = plan_samples.one()


def locks() -> list[bytes]:
    """Return the locks of a step that fits and of one that does not."""
    (fitting,) = LOCKED.predictions
    return [lock_of(LOCKED.job, [each]).to_text().encode() for each in (fitting, plan_samples.unfit(fitting))]


def compare_lock(path: Path) -> Any:
    """Read a lock, and compare a plan with it, as `anytpu plan --check plan.lock` does."""
    return [dataclasses.asdict(read_lock(path)), str(LOCKED.check_lock(path))]


BATTERIES = (
    Battery("hlo", modules, read_module, suffix=".hlo", damage=TEXT, names_file=False),
    Battery("runs", logs, read_log, suffix=".jsonl", damage=JSON),
    Battery("forecasts", lambda: [lines_of(FORECAST)], read_forecasts, suffix=".jsonl", damage=JSON),
    Battery("calibration", lambda: [json.dumps(FACTORS, indent=1).encode()], read_factors, suffix=".json", damage=JSON),
    Battery("lock", locks, compare_lock, suffix=".lock", damage=JSON),
    Battery("prices", lambda: [PRICES, b"chip,usd_per_chip_hour\nv4,3\n"], read_table, suffix=".csv", damage=TEXT),
)
