"""Evaluation and prediction with an estimator's model: metrics over all rows, and a generator of predictions.

Idea: a prediction's last batch is padded with copies of its last row, and their predictions are dropped. The device
computes the next batch while the rows of the current batch are yielded.

Rule: metric_fn is called once on the host, with the rows of all steps in order. So a metric that is not a mean of means
is also correct. Between two rows the generator of predictions holds only results, so it may be abandoned at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from anytpu.engine.feeds import MAX_STEPS
from anytpu.errors import DataExhaustedError, EstimatorError
from anytpu.migrate.estimator.inputs import Batch, pad_rows
from anytpu.migrate.estimator.mode_run import ModeRun, Outputs, joined
from anytpu.migrate.estimator.spec import Hooks, call_on_host
from anytpu.program.program import Tree
from anytpu.strategy.per_replica import PerReplica, is_per_replica

LOG = logging.getLogger("anytpu")


def evaluated(run: ModeRun, batches: Iterator[Batch], steps: int | None, hooks: Hooks) -> dict[str, Any]:
    """Evaluate a model.

    Args:
        run: the run of mode EVAL.
        batches: global batches.
        steps: number of steps; None: one for each batch.
        hooks: hooks, called once around all steps, as in the first TPU estimators.

    Returns:
        The metrics by name, and "loss".

    Raises:
        DataExhaustedError: there is no batch.
    """
    _begin(hooks).before()
    parts = list(run.steps(batches, 2**31 if steps is None else steps, MAX_STEPS))
    if not parts:
        raise DataExhaustedError("input_fn yielded no batch to evaluate: return a data set with at least one batch")
    steps_run = sum(len(part["loss"]) for part in parts)
    if steps is not None and steps_run < steps:
        LOG.warning("The data ended after %d of the %d steps of the evaluation", steps_run, steps)
    loss = np.concatenate([part["loss"] for part in parts]).mean(dtype=np.float64)
    hooks.after(loss=float(loss))
    metrics = _metrics(run, [part["eval_metrics"] for part in parts])
    hooks.end()
    return {**metrics, "loss": np.float32(loss)}


def _metrics(run: ModeRun, tensors: list[Outputs]) -> dict[str, Any]:
    spec = run.step.spec
    if spec is None or spec.eval_metrics is None:
        return {}
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[joined(chunk) for chunk in tensors])
    metrics = call_on_host("eval_metrics", spec.eval_metrics, rows)
    if not isinstance(metrics, dict):
        raise EstimatorError(
            f"metric_fn must return a dictionary of Keras metrics or numbers by name, not {metrics!r}: for example "
            '{"accuracy": accuracy}'
        )
    return {name: _value(name, metric) for name, metric in metrics.items()}


def _value(name: str, metric: Any) -> np.ndarray:
    if isinstance(metric, keras.metrics.Metric):
        metric = metric.result()
    try:
        return np.asarray(metric)[()] if np.ndim(metric) else np.asarray(metric).reshape(())[()]
    except (TypeError, ValueError) as error:
        raise EstimatorError(
            f"metric_fn returns {metric!r} as {name!r}, which is neither a Keras metric nor a number"
        ) from error


def format_results(values: dict[str, Any]) -> str:
    """Return results as one line, sorted by name."""
    return ", ".join(f"{name} = {_format(value)}" for name, value in sorted(values.items()))


def _format(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def predicted(
    run: ModeRun, batches: Iterator[Batch], caller_hooks: Iterable[Any] | None, is_by_row: bool, keys: Any
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
        hooks = hooks or _begin(run.hooks(caller_hooks))
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
