"""Fit the time model of `plan` on published measurements, and write `calibration.json`.

Run: `python scripts/calibrate_plan.py [--write] [--modules FOLDER]`. The TPU's compiler compiles each case of
`benchmarks/plan_cases`, and its predicted time is compared with the measured one. A case takes 2 to 40 minutes of CPU
time. FOLDER keeps the modules: a run that was ended goes on with the next case, and `--kept` fits what is there.

`--only row_share,small_start_s --case llama,gemma` fits some shared parameters on some cases, and leaves all
others as they are in the table. So steps that generate tokens are fitted without compiling those that train.

Idea: the fit has a few factors that all chips share. Each chip also has two own factors, of matrix products and of all
other work, over the compiler's cycles. A prior pulls each factor towards its default; more measurements of a chip
weaken the pull. Then each case is predicted from the other cases (leave-one-out).

Old measurements ran programs of old compilers, and the same step is faster today. One factor per year, for all chips,
corrects the measurements; predictions are for today's compiler.

Rule: the fit is linear in the logarithms of the factors around the last values, and is iterated until it converges. So
leaving cases out needs no second pass over the modules.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import anytpu  # noqa: E402, F401  # isort: skip

import numpy as np  # noqa: E402

import plan_cases  # noqa: E402
from anytpu import _env  # noqa: E402
from anytpu.errors import AnyTPUError  # noqa: E402
from anytpu.planning import compiler, hlo, timing  # noqa: E402
from anytpu.planning.compiler.answer import CompiledProgram  # noqa: E402
from anytpu.planning.records.target import Target, target_named  # noqa: E402
from anytpu.planning.timing import uncertainty  # noqa: E402
from anytpu.planning.timing.rates import rates_from  # noqa: E402
from anytpu.planning.timing.uncertainty import StepKind, step_kind, steps_record  # noqa: E402
from anytpu.program import of  # noqa: E402
from anytpu.units import format_seconds  # noqa: E402
from plan_cases.case import Case  # noqa: E402

TABLE = ROOT / "src/anytpu/planning/timing/calibration.json"
STEP = 0.02  # of a logarithm, for differences
SPREADS = {"step": 0.10, "matmul": 0.07, "copy": 0.05, "collective": 0.10}
"""Expected error of a measurement, as a logarithm, by the kind of case."""


TODAY = 2026
"""The year of the compiler that compiles the cases here."""

MIN_SPREAD = 0.05
"""Minimum spread of a step's prediction, as a logarithm, even if the few measured steps fit better. Two published runs
of one ResNet-50 on v3, with software of two years, are 4 % apart."""


class Knob(NamedTuple):
    """A fitted factor: its place in the table, and its prior spread around the default, as a logarithm."""

    chip: str | None
    name: str
    spread: float


@dataclasses.dataclass(frozen=True)
class Seen:
    """A case with its compiled module and its target."""

    case: Case
    module: hlo.Module
    target: Target

    def predicted_s(self, table: dict[str, Any]) -> float:
        """Return the predicted seconds of a calibration table, with the compiler of the case's year."""
        rates = rates_from(self.target, table)
        steps = 10**9 if self.case.timed_on == "device" else self.case.steps_per_execution
        today_s = timing.step_time(self.module, self.target, steps_per_execution=steps, rates=rates).step_s
        return today_s * table["shared"]["year_factor"] ** (TODAY - self.case.year if is_step(self) else 0)


class Parts(NamedTuple):
    """Inputs of a step's interval other than the errors of the fit.

    Attributes:
        variance: added variance of the parts that are hard to price, as a squared logarithm.
        kind: the step's kind, for the comparison with other steps.
    """

    variance: float
    kind: StepKind


START: dict[str, Any] = {
    "shared": {
        "excess_share": 0.6,  # between all and nothing
        "said_share": 0.88,  # of a chip without one of its own: the mean of the others
        "streamed_excess_share": 0.06,  # a guess: weights that stream overlap better than other arrays
        "row_share": 1.0,  # as if the compiler knew of one vector instruction a cycle
        "factor": 1.0,
        "hbm_share": 0.87,  # what streaming benchmarks of other memories reach
        # Two cores that each wait for the memory half of the time: half of it, over 1/2 + 1/2 * 1/2.
        "shared_memory_gain": 4 / 3,
        "start_s": 2e-6,  # a few memory latencies
        "early_s": 1.35e-6,  # a product of 128 x 128 on v7x against its cycles
        "transpose_share": 0.45,  # a guess: half of what a copy reaches
        "host_bytes_per_s": 2.5e10,  # PCIe, what 16 lanes of generation 4 reach
        "kernel_share": 0.5,  # a guess: half the peak
        # Products in blocks of 128, and of 512 x 1024, on v5e: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html
        "product_share": 0.98,
        "grouped_share": 0.8,  # a guess: groups end within a block, which is then computed twice
        "ragged_share": 0.8,  # a guess: the same
        "grid_step_s": 3.35e-7,  # the same page: 11.77 ms less 0.1 of the host for 32,768 steps
        "gather_share": 0.88,
        "reduce_share": 0.6,  # a ring that adds as it goes
        "exchange_share": 0.6,
        "hop_s": 1e-6,  # https://jax-ml.github.io/scaling-book/sharding
        "collective_start_s": 5e-6,
        "small_start_s": 2e-6,  # a guess: a write into the neighbour's memory, and a flag
        "dispatch_s": 1.2e-4,
        "year_factor": 1.0,  # how much longer a step took a year before
    },
    "chips": {
        # The compiler's cycles of v2 to v4 hold a shorter start.
        **{chip: {"early_s": 0.0, "said_share": share} for chip, share in (("v2", 0.98), ("v3", 0.967), ("v4", 0.922))},
        "v5e": {"said_share": 0.897},
        "v5p": {"said_share": 0.899},
        "v6e": {"said_share": 0.734},
        # At the datasheet's 2.2 GHz large products would reach 82 %; the compiler itself reckons with 1.9 GHz.
        "v7x": {"clock_hz": 1.9e9, "flops_per_s": 996e12, "said_share": 0.842},
    },
}
"""What is expected where nothing is measured. Numbers without a source are guesses, which the fit may move."""

SHARED = (
    Knob(None, "excess_share", 0.3),
    Knob(None, "row_share", 0.5),
    Knob(None, "hbm_share", 0.05),
    Knob(None, "shared_memory_gain", 0.1),
    Knob(None, "start_s", 0.5),
    Knob(None, "early_s", 0.3),
    Knob(None, "kernel_share", 0.3),
    Knob(None, "gather_share", 0.15),
    Knob(None, "reduce_share", 0.3),
    Knob(None, "collective_start_s", 0.7),
    Knob(None, "small_start_s", 0.7),
    Knob(None, "hop_s", 0.5),
    Knob(None, "dispatch_s", 0.3),
    Knob(None, "year_factor", 0.015),
)
OF_A_CHIP = {"excess_share": 0.4, "factor": 0.06}


def main() -> None:
    """Fit and print; with --write, also write the table."""
    parser = argparse.ArgumentParser(description="Fit the time model of plan.")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    parser.add_argument("--modules", type=Path, default=Path("/tmp/anytpu-plan-cases"), help="where modules are kept")
    parser.add_argument("--kept", action="store_true", help="leave out cases whose module is not there yet")
    parser.add_argument("--case", default="", help="only cases whose names begin with one of these, by commas")
    parser.add_argument("--only", default="", help="fit only these shared parameters, by commas")
    given = parser.parse_args()
    chosen = [case for case in plan_cases.CASES if case.name.startswith(tuple(given.case.split(",")))]
    seen = [entry for case in chosen if (entry := look(case, given.modules, given.kept))]
    start, knobs = begun(seen, given.only)
    table, jacobian, misses = fit(seen, knobs, start)
    without = left_out(seen, knobs, start, table, jacobian, misses)
    parts = parts_of(seen, table)
    table |= {"spread": spread_of(seen, without, parts), "steps": steps_of(seen, without, parts)}
    table["evidence"] = evidence(seen, misses)
    table["compiler"] = {"name": f"libtpu {_env.libtpu_version()}"}
    show(seen, misses, without, parts, table)
    for knob in knobs:
        print(f"{knob.chip or 'all':5} {knob.name:20} {value(start, knob):.4g} -> {value(table, knob):.4g}")
    if given.write:
        TABLE.write_text(json.dumps(table, indent=1) + "\n")


def begun(seen: list[Seen], only: str) -> tuple[dict[str, Any], tuple[Knob, ...]]:
    """Return the table to begin with, and the knobs: all, or some shared ones, with the others as they are shipped."""
    if not only:
        of_chips = (Knob(chip, name, spread) for chip in chips(seen) for name, spread in OF_A_CHIP.items())
        return START, (*SHARED, *of_chips)
    names, shipped = only.split(","), json.loads(TABLE.read_text())
    priors = {name: START["shared"][name] for name in names}
    return shipped | {"shared": shipped["shared"] | priors}, tuple(knob for knob in SHARED if knob.name in names)


def look(case: Case, folder: Path, only_kept: bool) -> Seen | None:
    """Compile a case, or read what was compiled before; None, and a line that says why, where that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    target = target_named(case.target)
    path = folder / f"{case.name}.hlo.gz"
    try:
        if not path.exists():
            if only_kept:
                return None
            answer = compiler.compile_program(of(*_built(case)), target, options=dict(case.options), timeout_s=1800)
            if not isinstance(answer, CompiledProgram):
                print(f"{case.name}: does not fit: {answer.said[:160]}")
                return None
            path.write_bytes(gzip.compress(answer.hlo.encode()))
        return Seen(case, hlo.parse(gzip.decompress(path.read_bytes()).decode()), target)
    except AnyTPUError as error:
        print(f"{case.name}: {str(error)[:300]}")
        return None


def _built(case: Case) -> tuple[Any, Any]:
    step, specs = case.build()
    return step, specs


def chips(seen: list[Seen]) -> list[str]:
    """Return the chips that something was measured on, in the order of the cases."""
    return list(dict.fromkeys(entry.target.chip.name for entry in seen))


def value(table: dict[str, Any], knob: Knob) -> float:
    """Return the value of a knob."""
    if knob.chip is None:
        return table["shared"][knob.name]
    return table["chips"].get(knob.chip, {}).get(f"{knob.name}_over_shared", 1.0)


def turned(table: dict[str, Any], knobs: tuple[Knob, ...], by: np.ndarray) -> dict[str, Any]:
    """Return a table with each knob multiplied by the exponential of a number."""
    new = copy.deepcopy(table)
    for knob, number in zip(knobs, by, strict=True):
        place = new["chips"].setdefault(knob.chip, {}) if knob.chip else new["shared"]
        name = f"{knob.name}_over_shared" if knob.chip else knob.name
        place[name] = value(table, knob) * math.exp(float(number))
    return new


def fit(
    seen: list[Seen], knobs: tuple[Knob, ...], start: dict[str, Any], rounds: int = 6
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Return the best table, and there the derivative of each case by each knob and the error of each case."""
    table, moved = start, np.zeros(len(knobs))
    for _ in range(rounds):
        misses, jacobian = slopes(seen, knobs, table)
        change = solved(seen, knobs, jacobian, misses, moved)
        moved = moved + np.clip(change, -0.5, 0.5)
        table = turned(start, knobs, moved)
    misses, jacobian = slopes(seen, knobs, table)
    return table, jacobian, misses


def slopes(seen: list[Seen], knobs: tuple[Knob, ...], table: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return each case's logarithm of predicted over measured, and its derivative by each knob."""
    misses = np.array([miss(entry, table) for entry in seen])
    jacobian = np.zeros((len(seen), len(knobs)))
    for column, knob in enumerate(knobs):
        other = turned(table, (knob,), np.array([STEP]))
        for row, entry in enumerate(seen):
            if knob.chip in (None, entry.target.chip.name):
                jacobian[row, column] = (miss(entry, other) - misses[row]) / STEP
    return misses, jacobian


def miss(entry: Seen, table: dict[str, Any]) -> float:
    """Return the logarithm of predicted over measured."""
    return math.log(entry.predicted_s(table) / entry.case.measured_s)


def solved(
    seen: list[Seen],
    knobs: tuple[Knob, ...],
    jacobian: np.ndarray,
    misses: np.ndarray,
    moved: np.ndarray,
    used: np.ndarray | None = None,
) -> np.ndarray:
    """Return the knobs' change that minimizes the weighted squared errors of the cases and the priors."""
    fitted = [0 if entry.case.is_judged_only else 1 / crowd(entry, seen) for entry in seen]
    weights = np.array([weight / SPREADS[entry.case.kind] ** 2 for weight, entry in zip(fitted, seen, strict=True)])
    weights = weights if used is None else weights * used
    holds = np.array([1 / knob.spread**2 for knob in knobs])
    left = jacobian.T @ (weights[:, None] * jacobian) + np.diag(holds)
    return np.linalg.solve(left, -(jacobian.T @ (weights * misses) + holds * moved))


def crowd(entry: Seen, seen: list[Seen]) -> float:
    """Return the factor by which a case would count too often: cases of one family are strongly correlated."""
    return math.sqrt(sum(other.case.family == entry.case.family for other in seen))


def left_out(
    seen: list[Seen],
    knobs: tuple[Knob, ...],
    start: dict[str, Any],
    table: dict[str, Any],
    jacobian: np.ndarray,
    misses: np.ndarray,
) -> np.ndarray:
    """Return each case's error when the fit leaves out its family."""
    moved = np.array([math.log(value(table, knob) / value(start, knob)) for knob in knobs])
    result = []
    for row, entry in enumerate(seen):
        used = np.array([float(not is_kin(other.case, entry.case)) for other in seen])
        change = solved(seen, knobs, jacobian, misses, moved, used)
        result.append(misses[row] + jacobian[row] @ change)
    return np.array(result)


def is_kin(other: Case, case: Case) -> bool:
    """Return whether a case is left out with another: itself and, for a step, the other steps of its family."""
    return other.name == case.name or (case.kind == "step" and other.family == case.family)


def spread_of(seen: list[Seen], without: np.ndarray, parts: list[Parts], skipped: int | None = None) -> dict[str, Any]:
    """Return the spread of a training step's prediction, as a logarithm: over all chips, and count and sum of squares
    per chip. Without such a step it is that of the shipped table.

    Each plan adds the variance of the parts that are hard to price, so it is subtracted here.

    Args:
        seen: the cases.
        without: each case's error when the fit leaves out its family, as a logarithm.
        parts: the inputs of each case's interval.
        skipped: index of a case that is left out here as well, or None.
    """
    steps = [
        (entry.case.generation, float(off) ** 2 - part.variance)
        for row, (entry, off, part) in enumerate(zip(seen, without, parts, strict=True))
        if is_step(entry) and part.kind.has_backward and row != skipped
    ]
    if not steps:
        return json.loads(TABLE.read_text())["spread"]
    typical = sum(square for _, square in steps) / len(steps)
    of_chips = {
        chip: [sum(of == chip for of, _ in steps), sum(max(square, 0.0) for of, square in steps if of == chip)]
        for chip in chips(seen)
    }
    return {"all": math.sqrt(max(typical, MIN_SPREAD**2)), "chips": of_chips}


def parts_of(seen: list[Seen], table: dict[str, Any]) -> list[Parts]:
    """Return the inputs of each case's interval other than the errors of the fit."""
    times = (timing.step_time(entry.module, entry.target, rates=rates_from(entry.target, table)) for entry in seen)
    return [
        Parts(uncertainty.variance_of_parts(time.ops, entry.target), step_kind(time.ops))
        for entry, time in zip(seen, times, strict=True)
    ]


def steps_of(seen: list[Seen], without: np.ndarray, parts: list[Parts], skipped: int | None = None) -> dict[str, Any]:
    """Return the record of the kinds of the step cases, without the skipped row; of the training steps, if none is
    there, the shipped one."""
    rows = [row for row, entry in enumerate(seen) if is_step(entry) and row != skipped]
    forward = [row for row in rows if not parts[row].kind.has_backward and not seen[row].case.is_judged_only]
    # An interval adds the variance of a chip and of the parts, so what the kind adds is only the rest.
    spread = spread_of(seen, without, parts, skipped)
    known = (uncertainty.variance_of_chip(seen[row].case.generation, spread) + parts[row].variance for row in forward)
    squares = sum(float(without[row]) ** 2 - variance for row, variance in zip(forward, known, strict=True))
    record = steps_record([parts[row].kind for row in rows], max(squares, 0.0), len(forward))
    if record["all"] > record["without_backward"]:
        return record
    shipped = json.loads(TABLE.read_text())["steps"]
    trained = shipped["all"] - shipped["without_backward"]
    return record | {"all": trained + record["without_backward"], "most": shipped["most"]}


def is_step(entry: Seen) -> bool:
    """Return whether a case is a training step."""
    return entry.case.kind == "step"


def evidence(seen: list[Seen], misses: np.ndarray) -> dict[str, list[str]]:
    """Return sentences about what was measured, by chip, steps first."""
    shipped = json.loads(TABLE.read_text())["evidence"]
    names = tuple(f"{entry.case.name} took " for entry in seen)
    # Of cases that are not here, as in a fit of some parameters only, the sentences stay.
    found = {chip: [said for said in lines if not said.startswith(names)] for chip, lines in shipped.items()}
    rows = sorted(zip(seen, misses, strict=True), key=lambda row: row[0].case.kind != "step")
    for entry, off in rows:
        case = entry.case
        off_percent = round(math.expm1(off) * 100)
        said = f"{abs(off_percent)} % {'longer' if off_percent > 0 else 'shorter'}" if off_percent else "the same"
        found.setdefault(case.generation, []).append(
            f"{case.name} took {format_seconds(case.measured_s)} ({case.stack}, {case.year}; {case.source}); "
            f"predicted: {said}."
        )
    return found


def show(seen: list[Seen], misses: np.ndarray, without: np.ndarray, parts: list[Parts], table: dict[str, Any]) -> None:
    """Print each case, and how good the model is."""
    print(f"{'case':34} {'kind':10} {'measured s':>11} {'fitted':>8} {'left out':>9}  where the time goes")
    for entry, fitted, off in zip(seen, misses, without, strict=True):
        time = timing.step_time(entry.module, entry.target, rates=rates_from(entry.target, table))
        kinds = " ".join(f"{kind}:{seconds / time.step_s:.0%}" for kind, seconds in time.by(lambda op: op.kind).items())
        print(
            f"{entry.case.name:34} {entry.case.kind:10} {entry.case.measured_s:11.4g} {math.exp(fitted) - 1:+8.1%} "
            f"{math.exp(off) - 1:+9.1%}  {kinds}"
        )
    for kind in SPREADS:
        rows = [(entry, off) for entry, off in zip(seen, without, strict=True) if entry.case.kind == kind]
        errors = [abs(math.expm1(off)) for _, off in rows]
        if errors:
            print(f"{kind}: {len(errors)} cases, left out: median {np.median(errors):.1%}, worst {max(errors):.1%}")
        if kind == "step" and rows:
            found = [bounds(seen, without, parts, at, table) for at, entry in enumerate(seen) if is_step(entry)]
            held = sum(low <= -off <= high for (_, off), (low, high) in zip(rows, found, strict=True))
            print(f"intervals: {held} of {len(rows)} hold, median half-width {np.median(half_widths(found)):.1%}")


def bounds(
    seen: list[Seen], without: np.ndarray, parts: list[Parts], at: int, table: dict[str, Any]
) -> tuple[float, float]:
    """Return the interval of a case that `plan` gives, as logarithms, as if nobody had seen what the case is off by."""
    entry = seen[at]
    time = timing.step_time(entry.module, entry.target, rates=rates_from(entry.target, table))
    known = {
        "spread": spread_of(seen, without, parts, skipped=at),
        "steps": steps_of(seen, without, parts, skipped=at),
    }
    return uncertainty.logarithms_of(time.ops, entry.target, known)


def half_widths(found: list[tuple[float, float]]) -> list[float]:
    """Return half of each interval, as a part of the prediction."""
    return [(math.exp(high) - math.exp(low)) / 2 for low, high in found]


if __name__ == "__main__":
    main()
