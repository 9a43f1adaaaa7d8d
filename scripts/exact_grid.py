"""Run the whole exact grid against plain Keras: all numbers of examples, batch sizes and core counts, on both backends.

Print a table of the worst errors and write them to benchmarks/results/exact_grid.json. The 4,200 cases take hours,
mostly of compilation; compiled programs are kept in build/. The tests run a sample of these cases.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from exact import children, grid  # noqa: E402
from exact.grid import Case, Result  # noqa: E402

BUILD = ROOT / "build" / "exact_grid"
SO_FAR = BUILD / "results.jsonl"
KEEP_COMPILED = {
    "JAX_COMPILATION_CACHE_DIR": str(BUILD / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, known in (
        ("backend", grid.BACKENDS),
        ("dtype", grid.DTYPES),
        ("model", (*grid.MODELS, *grid.SHARDED_MODELS)),
        ("optimizer", grid.OPTIMIZERS),
    ):
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=list(known), help="only these")
    parser.add_argument("--layouts", action="store_true", help="sharded models, each in each layout: 160 cases")
    parser.add_argument("--each-size-once", action="store_true", help="the models in turn: 420 cases")
    parser.add_argument("--sample", action="store_true", help="only what the tests run")
    parser.add_argument("--resume", action="store_true", help="keep the results of a run that was broken off")
    parser.add_argument("--processes", type=int, default=2, help="how many run at a time (2)")
    parser.add_argument("--output", type=Path, help="of the records (benchmarks/results/exact_grid.json)")
    chosen = parser.parse_args()
    name = "exact_layouts.json" if chosen.layouts else "exact_grid.json"
    chosen.output = chosen.output or ROOT / "benchmarks" / "results" / name
    return chosen


def wanted(chosen: argparse.Namespace) -> list[Case]:
    """Return the requested cases."""
    sampled = itertools.chain.from_iterable(grid.sample(b, d) for b in grid.BACKENDS for d in grid.DTYPES)
    whole = grid.every_size() if chosen.each_size_once else grid.every_case()
    whole = grid.every_layout() if chosen.layouts else whole
    every = sampled if chosen.sample else whole
    fields = ("backend", "dtype", "model", "optimizer")
    return [case for case in every if all(getattr(case, field) in getattr(chosen, field) for field in fields)]


def kept() -> list[Result]:
    """Return the results of an interrupted run."""
    with contextlib.suppress(FileNotFoundError):
        lines = [json.loads(line) for line in SO_FAR.read_text().splitlines()]
        return [Result(**{**fields, "case": Case(**fields["case"])}) for fields in lines]
    return []


def run(cases: Iterable[Case], processes: int) -> Iterator[Result]:
    """Run cases, so many processes at a time, and yield each result when it is there."""
    found: SimpleQueue[Result | None] = SimpleQueue()
    parts = list(parts_of(cases))

    def run_part(part: list[Case]) -> None:
        try:
            for result in children.run(part, KEEP_COMPILED):
                found.put(result)
        finally:
            found.put(None)

    with ThreadPoolExecutor(processes) as pool:
        jobs = [pool.submit(run_part, part) for part in parts]
        ended = 0
        while ended < len(parts):
            result = found.get()
            if result is None:
                ended += 1
            else:
                yield result
        for job in jobs:
            job.result()


def parts_of(cases: Iterable[Case], most: int = 105) -> Iterator[list[Case]]:
    """Yield the cases in parts, each for one process: of one backend and dtype, and not so many that memory fills."""
    for _, group in itertools.groupby(cases, key=lambda case: (case.backend, case.dtype)):
        alike = list(group)
        yield from (alike[first : first + most] for first in range(0, len(alike), most))


def kind(case: Case) -> tuple[str, str, str, str]:
    """Return the key of a table row."""
    return case.backend, case.dtype, case.model, case.optimizer


def summary(results: Iterable[Result]) -> list[dict]:
    """Return a record for each line of the table: how many cases, the worst error and where it was."""
    lines = []
    for names, group in itertools.groupby(
        sorted(results, key=lambda one: kind(one.case)), key=lambda one: kind(one.case)
    ):
        found = list(group)
        worst = max(found, key=lambda one: one.error)
        lines.append(
            {
                **dict(zip(("backend", "dtype", "model", "optimizer"), names, strict=True)),
                "cases": len(found),
                "worst_error": worst.error,
                "bound": worst.case.bound,
                "of": worst.name if worst.error else "all equal",
                "in": place_of(worst.case),
                "faults": [fault for result in found for fault in result.faults],
            }
        )
    return lines


def place_of(case: Case) -> str:
    """Return the size, the cores and the layout of a case as text."""
    layout = case.layout and f", layout {case.layout}"
    return f"{case.examples} examples, batch {case.batch}, {case.cores} cores{layout}"


def table(lines: list[dict]) -> str:
    """Return the lines as text."""
    form = "{backend:8} {dtype:8} {model:11} {optimizer:6} {cases:>6} {faults:>7} {worst:>8} {bound:>6}  {of} ({place})"
    names = ("backend", "dtype", "model", "optimizer", "cases", "faults", "worst", "bound", "of")
    rows = [form.format(**{name: name for name in names}, place="where")]
    for line in lines:
        shown = {name: line[name] for name in ("backend", "dtype", "model", "optimizer", "cases", "of")}
        worst, bound = f"{line['worst_error']:.1e}", f"{line['bound']:.0e}"
        rows.append(form.format(**shown, faults=len(line["faults"]), worst=worst, bound=bound, place=line["in"]))
    return "\n".join(rows)


def machine() -> dict[str, str]:
    """Return the machine and the package versions."""
    packages = {name: version(name) for name in ("jax", "jaxlib", "keras", "numpy")}
    return {"machine": f"{platform.machine()}, {os.cpu_count()} CPUs", "python": platform.python_version(), **packages}


def main() -> int:
    chosen = options()
    BUILD.mkdir(parents=True, exist_ok=True)
    asked = wanted(chosen)
    results = [result for result in kept() if result.case in set(asked)] if chosen.resume else []
    SO_FAR.write_text("".join(json.dumps(dataclasses.asdict(result)) + "\n" for result in results))
    done = {result.case for result in results}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress, SO_FAR.open("a") as so_far:
        task = progress.add_task("cases", total=len(asked), completed=len(results))
        for result in run([case for case in asked if case not in done], chosen.processes):
            results.append(result)
            so_far.write(json.dumps(dataclasses.asdict(result)) + "\n")
            so_far.flush()
            for fault in result.faults:
                progress.console.print(fault, highlight=False)
            progress.advance(task)
    lines = summary(results)
    print(table(lines))
    chosen.output.write_text(
        json.dumps(
            {
                **machine(),
                "cases": len(results),
                "of": len(list(grid.every_layout() if chosen.layouts else grid.every_case())),
                "lines": lines,
            },
            indent=1,
        )
        + "\n"
    )
    return 1 if any(line["faults"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
