"""Prediction: a generator of dictionaries, one for each row.

Idea: the last batch is padded with copies of its last row, and their predictions are dropped. The device computes the
next batch while the rows of the current batch are yielded.

Rule: between two rows the generator holds only results. So it may be abandoned, closed or run beside another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from anytpu.errors import EstimatorError
from anytpu.program.program import Tree
from anytpu.strategy.per_replica import PerReplica, is_per_replica
from anytpu.train.estimator.hooks import Hooks
from anytpu.train.estimator.inputs import Batch, pad_rows
from anytpu.train.estimator.mode_run import ModeRun


def predicted(
    run: ModeRun, batches: Iterator[Batch], caller_hooks: Iterable[Any], is_by_row: bool, keys: Any
) -> Iterator[dict[str, np.ndarray]]:
    """Yield predictions.

    Args:
        run: the run of mode PREDICT.
        batches: global batches; labels are ignored.
        caller_hooks: hooks of the caller, called before those of the model_fn.
        is_by_row: True yields one dictionary for each row, False one for each batch.
        keys: names of the predictions to yield; None: all.

    Raises:
        EstimatorError: there is no prediction of one of these names.
    """
    # Two batches are in flight: `waiting` has run and is not yielded yet, `started` is its successor.
    waiting: tuple[int, Tree] | None = None
    full = run.deployment.rows or 0
    hooks: Hooks | None = None
    for features, _ in batches:
        rows = len(jax.tree.leaves(features)[0])
        full = max(rows, full)
        batch = jax.tree.map(lambda leaf, full=full: pad_rows(leaf, full), features), None
        run.make(batch)
        hooks = hooks or _begin(Hooks([*caller_hooks, *run.hooks()]))
        hooks.before()
        started = rows, run.once(batch)
        stops = hooks.after()
        if waiting is not None:
            yield from _rows_of_batch(*waiting, is_by_row, keys)
        waiting = started
        if stops:
            break
    if waiting is not None and hooks is not None:
        yield from _rows_of_batch(*waiting, is_by_row, keys)
        hooks.end()


def _begin(hooks: Hooks) -> Hooks:
    hooks.begin()
    hooks.ready()
    return hooks


def _rows_of_batch(rows: int, outputs: dict[str, Any], is_by_row: bool, keys: Any) -> Iterator[dict[str, np.ndarray]]:
    chosen = outputs if keys is None else {key: outputs[key] for key in _checked(keys, outputs)}
    arrays = jax.tree.map(_rows, chosen, is_leaf=is_per_replica)
    if not is_by_row:
        yield {name: array[:rows] for name, array in arrays.items()}
        return
    for row in range(rows):
        yield {name: array[row] for name, array in arrays.items()}


def _rows(value: Any) -> np.ndarray:
    if not isinstance(value, PerReplica):
        return np.asarray(value)
    stack = value.stacked()
    return stack.reshape(-1, *stack.shape[2:])


def _checked(keys: Any, outputs: dict[str, Any]) -> list[str]:
    wanted = [keys] if isinstance(keys, str) else list(keys)
    unknown = [key for key in wanted if key not in outputs]
    if unknown:
        raise EstimatorError(f"there is no prediction {unknown[0]!r}: model_fn predicts {sorted(outputs)}")
    return wanted
