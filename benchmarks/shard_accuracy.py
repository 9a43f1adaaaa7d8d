"""How good the choice of `shard` is: `python benchmarks/shard_accuracy.py [--pair NAME ...]`.

For each pair of `shard_pairs.py`, a model on a slice, every candidate of the search is compiled and timed. The search
compiles only the 8 that its estimate puts first. The table tells how much slower the best of these is than the best of
all, and the rank that the estimate gave to the best of all.

The rules by which MaxText, Levanter and the scaling book split a transformer by hand compete with the candidates.

Candidates are compiled up to their schedules, in a tenth of the time of a compilation.

Writes `benchmarks/results/shard_accuracy.json` after each candidate; candidates in it are not compiled again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]
import anytpu as tpu  # noqa: E402  # isort: skip

from jax.sharding import PartitionSpec  # noqa: E402

from anytpu.planning.jobs.job import PlanJob  # noqa: E402
from anytpu.planning.jobs.settings import PlanSettings  # noqa: E402
from anytpu.planning.records.target import target_named  # noqa: E402
from anytpu.planning.shardings.depth import SearchedJob  # noqa: E402
from anytpu.planning.shardings.search import traced_job  # noqa: E402
from anytpu.planning.shardings.slice_search import SliceSearch  # noqa: E402
from anytpu.program.placed import axes_text  # noqa: E402
from anytpu.sharding import ModelLayout, resolve  # noqa: E402
from shard_pairs import PAIRS, Pair, Transformer  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "shard_accuracy.json"
COMPILED = 8


_SPLIT_BLOCKS = {
    "/(query|key|value)$": (None, "data", "model", None),
    "/out$": (None, "model", None, "data"),
    "/(up|gate)$": (..., "data", "model"),
    "/down$": (..., "model", "data"),
}
HAND = {
    # MaxText/configs/base.yml, logical_axis_rules: embed over fsdp, vocab, mlp and heads over tensor.
    "MaxText": {**_SPLIT_BLOCKS, "/embedding$": ("model", "data"), "/logits$": ("data", "model")},
    # Levanter, TrainerConfig: embed over data; tensor_parallel_axes of its configurations: mlp and heads.
    "Levanter": {**_SPLIT_BLOCKS, "/embedding$": (None, "data"), "/logits$": ("data", None)},
    # https://jax-ml.github.io/scaling-book/training: In[D_X, F_Y], Out[F_Y, D_X]; its vocabulary is whole.
    "scaling book": {**_SPLIT_BLOCKS, "/embedding$": (), "/logits$": ("data", None)},
}
"""Partitions that people write by hand, by the end of a weight's name; `...` stands for the axes before."""


def main() -> None:
    """Compile the candidates of each pair, print a line for each, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", action="append", default=[], help="only pairs whose name begins so")
    parser.add_argument("--show", action="store_true", help="only show the record")
    arguments = parser.parse_args()
    record = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"pairs": {}}
    for pair in PAIRS:
        chosen = not arguments.pair or pair.name.startswith(tuple(arguments.pair))
        if chosen and not arguments.show:
            for row in compiled(pair, record["pairs"].get(pair.key, {})):
                record["anytpu"], record["pairs"][pair.key] = tpu.__version__, row
                RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    rows = {key: judged(row) for key, row in record["pairs"].items() if row["is_whole"]}
    for key, row in rows.items():
        print(
            f"{key:24} best of {row['fitting']:2}: {row['best']:34} {1e3 * row['best_s']:8.2f} ms, "
            f"rank {row['rank']:2}; of {COMPILED}: {row['first']:34} {row['behind']:+.1%}"
        )
    print(f"within 3 %: {sum(row['behind'] <= 0.03 for row in rows.values())} of {len(rows)} pairs")


def compiled(pair: Pair, before: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the record of a pair after each candidate; `before` is that of an earlier run."""
    started, (step, specs), target = time.monotonic(), pair.build(), target_named(pair.tpu)
    job = PlanJob(step, specs, batch_axis=pair.batch_axis)
    settings = PlanSettings(timeout_s=1800.0, is_trial=True, stage="schedule")
    search = SliceSearch(SearchedJob(job, traced_job(job, None), None), target, settings)
    search.choose(COMPILED)
    times = {row["layout"]: row for row in before.get("candidates", ()) if "step_s" in row}
    rows = [
        {
            "layout": f"{sharding.layout.name} ({sharding.mesh})",
            "estimate_s": sharding.estimate_s,
            "is_chosen": not sharding.reason,
            "reason": sharding.reason if "shorter" not in sharding.reason else "",
        }
        for sharding in search.shardings
    ]
    layouts = [sharding.layout for sharding in search.shardings]
    for layout in by_hand(pair, target.devices):
        layouts.append(layout)
        name = f"{layout.name} ({axes_text(layout.axes)})"
        rows.append({"layout": name, "estimate_s": None, "is_chosen": False, "reason": ""})
    for layout, row in zip(layouts, rows, strict=True):
        if row["reason"]:
            continue
        if row["layout"] in times:
            row["step_s"] = times[row["layout"]]["step_s"]
            continue
        row["step_s"] = search.job.predict(layout, target, settings).step_s
        print(f"  {pair.key}: {time.monotonic() - started:5.0f} s  {row['layout']}: {row['step_s']}", flush=True)
        yield {"weights": pair.weights, "is_whole": False, "candidates": rows}
    yield {"weights": pair.weights, "is_whole": True, "candidates": rows}


def by_hand(pair: Pair, devices: int) -> Iterator[ModelLayout]:
    """Yield the layouts of the rules for one and two devices along "model"; none for a pair that is no transformer."""
    model = getattr(pair.build, "__self__", None)
    if not isinstance(model, Transformer) or not model.vocabulary:
        return
    for name, rules in HAND.items():
        for size in (size for size in (1, 2) if model.kv_heads % size == 0):

            def partition(path: str, shape: tuple[int, ...], rules: dict[str, Any] = rules) -> PartitionSpec:
                spec = next((spec for end, spec in rules.items() if re.search(end, path)), ())
                whole = (None,) * (len(shape) + 1 - len(spec))
                return PartitionSpec(*(part for each in spec for part in (whole if each is ... else (each,))))

            layout = resolve(partition, {"data": devices // size, "model": size}, devices)
            yield dataclasses.replace(layout, name=name)


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """Return how far the search stays behind the best candidate."""
    possible = [candidate for candidate in row["candidates"] if "step_s" in candidate]
    fitting = [candidate for candidate in possible if candidate["step_s"]]
    best = min(fitting, key=lambda candidate: candidate["step_s"])
    first = min(
        (candidate for candidate in fitting if candidate["is_chosen"]), key=lambda candidate: candidate["step_s"]
    )
    return {
        "fitting": len(fitting),
        "best": best["layout"],
        "best_s": best["step_s"],
        "rank": 1 + possible.index(best),
        "first": first["layout"],
        "behind": first["step_s"] / best["step_s"] - 1,
    }


if __name__ == "__main__":
    main()
