"""Evaluation: compute the mean loss and the metrics over all rows.

Rule: metric_fn is called once on the host, with the rows of all steps in order. So a metric that is not a mean of means
is also correct. metric_fn returns Keras metrics, whose results are taken, or numbers.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np

from anytpu.engine.feeds import MAX_STEPS
from anytpu.errors import DataExhaustedError, EstimatorError
from anytpu.train.estimator.hooks import Hooks
from anytpu.train.estimator.inputs import Batch
from anytpu.train.estimator.mode_run import ModeRun, Outputs, joined
from anytpu.train.estimator.spec import call_on_host

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
    hooks.before()
    parts = list(run.steps(batches, 2**31 if steps is None else steps, MAX_STEPS))
    if not parts:
        raise DataExhaustedError("input_fn yielded no batch to evaluate: return a data set with at least one batch")
    steps_run = sum(len(part["loss"]) for part in parts)
    if steps is not None and steps_run < steps:
        LOG.warning("The data ended after %d of the %d steps of the evaluation", steps_run, steps)
    loss = np.concatenate([part["loss"] for part in parts]).mean(dtype=np.float64)
    hooks.after(loss=float(loss))
    return {**_metrics(run, [part["eval_metrics"] for part in parts]), "loss": np.float32(loss)}


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


def chained(first: Batch, rest: Iterator[Batch]) -> Iterator[Batch]:
    """Return an iterator over the first batch, which was taken already, and the rest."""
    return itertools.chain([first], rest)
