"""Losses inside a replica, scaled so that their sum over the replicas is the loss of the global batch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from anytpu.errors import ReplicaError, StrategyError
from anytpu.strategy.replicas import current_replica
from anytpu.strategy.rows import mask_of, without_pads


def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: int | None = None) -> Any:
    """Return this replica's share of the mean loss over the global batch: the sum of its losses over the global rows.

    Args:
        per_example_loss: losses of this replica's rows, `(rows, ...)`.
        sample_weight: a weight for each row, `(rows,)` or `(rows, 1)`, or for each loss, or None.
        global_batch_size: number of rows in the global batch; None takes the real rows of all replicas.

    Raises:
        StrategyError: called outside a function that `strategy.run` runs.
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
    mask, losses = mask_of(losses), without_pads(losses)
    rows: Any = global_batch_size
    if rows is None:
        rows = losses.shape[0] * replica.replicas if mask is None else replica.sum(jnp.sum(mask))
    # An empty batch has a loss of zero, not of 0 / 0.
    return jnp.sum(losses) / jnp.maximum(rows, 1)


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
    return sum((jnp.sum(jnp.asarray(loss)) for loss in listed), start=jnp.zeros(())) / replica.replicas
