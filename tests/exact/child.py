"""Runs cases of the exact grid in this process, which `exact.children` gave the devices and the dtype that they need.

`python -m exact.child CASES` takes the cases as JSON and prints a line of JSON for each result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import json
import sys
import warnings
from collections.abc import Iterable, Iterator

import keras
import numpy as np
from keras.src.backend.common import dtypes

import anytpu as tpu
from exact.grid import Case, Outcome, Result, worst
from exact.layouts import LAYOUTS
from exact.models import KINDS, Batches, Kind, Rows, compiled, rows_of

_SEED = 7


def prepare(dtype: str) -> None:
    """Let Keras compute in this dtype, all of it."""
    keras.config.set_floatx(dtype)
    if dtype == "float64":
        # Keras's `result_type` lowers float64 to float32, also under floatx float64; normalisation and means ask it.
        dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"


def results(cases: Iterable[Case]) -> Iterator[Result]:
    """Run cases here; neighbours that differ only in their cores or in their layout share an oracle."""
    for _, group in itertools.groupby(cases, key=_oracle):
        alike = list(group)
        expected, _ = outcome(alike[0], None)
        for case in alike:
            found, counts = outcome(case, strategy_of(case))
            yield Result(case, *worst(case, expected, found), *counts)
        keras.backend.clear_session()
        gc.collect()


def _oracle(case: Case) -> Case:
    """Return the case that plain Keras computes for another, as long as the other."""
    return dataclasses.replace(case, cores=0, layout="any" if case.layout else "")


def strategy_of(case: Case) -> tpu.TPUStrategy:
    layout, mesh = LAYOUTS[case.layout](case.model) if case.layout else (None, None)
    if case.backend == "virtual":
        return tpu.connect("virtual", cores=case.cores, layout=layout, mesh=mesh)
    resolver = tpu.TPUClusterResolver.from_address(tpu.system.Address("local", case.cores))
    return tpu.TPUStrategy(resolver, layout=layout, mesh=mesh)


def outcome(case: Case, strategy: tpu.TPUStrategy | None) -> tuple[Outcome, tuple[int, int]]:
    """Make the model, train it and use it: in the scope of a strategy, or in none, which is the oracle.

    Returns:
        All that comes of it; and how many programs fit compiled before it first validated, and in all.
    """
    kind = KINDS[case.model]
    keras.utils.set_random_seed(_SEED)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = compiled(kind, case.optimizer, case.steps if strategy else None)
    watch = CompilationWatch(strategy)
    keras.utils.set_random_seed(_SEED + 1)
    history = fitted(case, kind, model, watch)
    counts = (watch.counts[0], watch.now())
    parts = {f"History {name}": np.array(values) for name, values in history.items()}
    variables = enumerate([*model.variables, *model.optimizer.variables])
    parts |= {f"variable {index}": np.array(variable.value) for index, variable in variables}
    return parts | used(case, kind, model), counts


class CompilationWatch(keras.callbacks.Callback):
    """Counts what a strategy compiles; `counts` has the number at the start of each validation."""

    def __init__(self, strategy: tpu.TPUStrategy | None) -> None:
        super().__init__()
        self.strategy = strategy
        self.counts: list[int] = []

    def now(self) -> int:
        return self.strategy.compilations if self.strategy else 0

    def on_test_begin(self, logs: dict | None = None) -> None:
        self.counts.append(self.now())


def fitted(case: Case, kind: Kind, model: keras.Model, watch: CompilationWatch) -> dict[str, list[float]]:
    """Fit a model, with as much validation data as training data; return the History."""
    rows, others = rows_of(kind, case.examples, seed=1), rows_of(kind, case.examples, seed=2)
    settings = {"epochs": case.epochs, "shuffle": True, "verbose": 0, "callbacks": [watch]}
    if kind.streamed:
        return model.fit(Batches(rows, case.batch), validation_data=Batches(others, case.batch), **settings).history
    validation = tuple(array for array in (others.x, others.y, others.weight) if array is not None)
    return model.fit(
        rows.x, rows.y, case.batch, sample_weight=rows.weight, validation_data=validation, **settings
    ).history


def used(case: Case, kind: Kind, model: keras.Model) -> Outcome:
    """Return what a fitted model evaluates to and predicts, of many rows and of one; then of steps on one batch."""
    rows, many, one = rows_of(kind, case.examples, seed=1), {"verbose": 0}, {"return_dict": True}
    if kind.streamed:
        logs = model.evaluate(Batches(rows, case.batch), **many, **one)
        predicted = model.predict(Batches(Rows(rows.x, rows.y), case.batch), **many)
        predicted_one = model.predict_on_batch(rows.x[:1])
        logs |= {f"of train_on_batch {name}": value for name, value in on_batch(model, rows).items()}
    else:
        logs = model.evaluate(rows.x, rows.y, case.batch, sample_weight=rows.weight, **many, **one)
        predicted = model.predict(rows.x, case.batch, **many)
        predicted_one = model.predict(rows.x[:1], case.batch, **many)
    parts = {f"evaluate {name}": np.array(value) for name, value in logs.items()}
    return parts | {"predict": predicted, "predict one row": np.asarray(predicted_one)}


def on_batch(model: keras.Model, rows: Rows) -> dict:
    return model.train_on_batch(rows.x, rows.y, sample_weight=rows.weight, return_dict=True)


def main() -> None:
    """Answer the cases in the first argument."""
    warnings.simplefilter("error")
    cases = [Case(**fields) for fields in json.loads(sys.argv[1])]
    prepare(cases[0].dtype)
    for result in results(cases):
        print(json.dumps(dataclasses.asdict(result)), flush=True)


if __name__ == "__main__":
    main()
