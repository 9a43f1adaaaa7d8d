"""Losses over the rows of the global batch, as each replica's share of them.

Rule: a loss is scaled so that its sum over the replicas is the loss of the global batch. A scalar counts once per
replica, also on a replica without rows.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu._calls import explain_arguments
from anytpu.errors import ReplicaError, SettingTypeError, StrategyError
from anytpu.strategy.loss_terms import mark_share
from anytpu.strategy.replicas import current_replica


@explain_arguments
def row_mask(rows: Any) -> Any:
    """Return the mask of real rows in this replica's batch: all of them, since a step never sees pads.

    Args:
        rows: an array with the rows of the batch, `(rows, ...)`.

    Returns:
        bool `(rows,)`, all True. Programs written for padded batches multiply by it.

    Raises:
        StrategyError: called outside a function that `strategy.run` runs.

    Example:
        >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=2))
        >>> batch = next(iter(strategy.distribute_dataset([np.arange(3.0)])))
        >>> strategy.run(lambda x: (x * row_mask(x)).sum(), args=(batch,))
        PerReplica:{
          0: 1.0,
          1: 2.0
        }
    """
    if current_replica() is None:
        raise StrategyError(
            "row_mask returns the real rows of one replica's batch: call it inside a function that you pass to "
            "strategy.run. Outside, the parts of a PerReplica have no pads"
        )
    return jnp.ones(np.shape(rows)[:1], bool)


@explain_arguments
def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: int | None = None) -> Any:
    """Return this replica's share of the mean loss over the global batch: the sum of its losses over the global rows.

    Args:
        per_example_loss: losses of this replica's rows, `(rows, ...)`.
        sample_weight: a weight for each row, `(rows,)` or `(rows, 1)`, or for each loss, or None.
        global_batch_size: number of rows in the global batch; None takes the real rows of all replicas.

    Raises:
        StrategyError: called outside a function that `strategy.run` runs.
        SettingTypeError: `global_batch_size` is negative, or no integer.
        ReplicaError: the loss is a scalar, so it was averaged already; or there is not one weight for each row or loss.

    Example:
        >>> def step(losses):
        ...     return compute_average_loss(losses, global_batch_size=16)
        >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=8))
        >>> float(strategy.reduce("SUM", strategy.run(step, args=(np.ones(2, "float32"),))))
        1.0
    """
    replica = current_replica()
    if replica is None:
        raise StrategyError(
            "compute_average_loss is for one replica's losses: call it inside a function that you pass to "
            "strategy.run. Outside, take the mean of the losses"
        )
    losses = jnp.asarray(per_example_loss)
    if losses.ndim == 0:
        raise ReplicaError(
            "compute_average_loss needs one loss for each row, not a scalar: pass the losses before they are averaged, "
            'for example from a Keras loss made with reduction="none"'
        )
    if sample_weight is not None:
        losses = losses * _like(losses, jnp.asarray(sample_weight, losses.dtype))
    rows = global_batch_size
    if rows is not None:
        _check_global_rows(rows)
    else:
        rows = sum(replica.each(losses.shape[0]))
    # An empty batch has a loss of zero, not of 0 / 0.
    return mark_share(jnp.sum(losses) / jnp.maximum(rows, 1))


def _check_global_rows(rows: Any) -> None:
    is_traced = isinstance(rows, jax.Array)
    dtype = rows.dtype if is_traced else np.asarray(rows).dtype
    if dtype.kind not in "iu" or (not is_traced and rows < 0):
        raise SettingTypeError(
            f"global_batch_size must be a number of rows, an integer of 0 or more, not {rows!r:.60}. Leave it out to "
            "count the real rows of all replicas"
        )


def _like(losses: Any, weights: Any) -> Any:
    """Return weights in a shape that broadcasts to the losses: a weight of a row applies to all losses of the row."""
    shape = weights.shape
    # Drop trailing axes of size 1: weights (rows, 1) times losses (rows,) would broadcast to (rows, rows).
    while weights.ndim > losses.ndim and weights.shape[-1] == 1:
        weights = weights[..., 0]
    weights = weights.reshape(weights.shape + (1,) * (losses.ndim - weights.ndim))
    fits = weights.ndim == losses.ndim and all(a in (1, b) for a, b in zip(weights.shape, losses.shape, strict=True))
    if not fits:
        raise ReplicaError(
            f"sample_weight has the shape {shape}, and the losses have {losses.shape}: pass one weight for each "
            "row, (rows,), or one for each loss"
        )
    return weights


@explain_arguments
def scale_regularization_loss(regularization_loss: Any) -> Any:
    """Return this replica's share of a loss that is equal on every replica: its sum divided by the number of replicas.

    Args:
        regularization_loss: a number, an array or a list of them, such as `model.losses`.

    Raises:
        StrategyError: called outside a function that `strategy.run` runs.

    Example:
        >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=8))
        >>> shares = strategy.run(lambda: scale_regularization_loss([1.0, 3.0]))
        >>> float(strategy.reduce("SUM", shares))
        4.0
    """
    replica = current_replica()
    if replica is None:
        raise StrategyError(
            "scale_regularization_loss is for one replica's share: call it inside a function that you pass to "
            "strategy.run. Outside, take the sum of the losses"
        )
    listed = regularization_loss if isinstance(regularization_loss, list | tuple) else [regularization_loss]
    return mark_share(sum((jnp.sum(jnp.asarray(loss)) for loss in listed), start=jnp.zeros(())) / replica.replicas)
