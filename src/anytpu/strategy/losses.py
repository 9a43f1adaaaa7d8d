"""Losses inside a replica, scaled so that their sum over the replicas is the loss of the global batch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from anytpu.errors import ReplicaError, StrategyError
from anytpu.strategy.replicas import current_replica


def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: int | None = None) -> Any:
    """Return this replica's share of the mean loss over the global batch: the sum of its losses over the global rows.

    Args:
        per_example_loss: losses of this replica's rows, `(rows, ...)`.
        sample_weight: a weight for each row, `(rows,)`, or for each loss, or None.
        global_batch_size: the rows of the global batch; None takes this replica's rows times the replicas.

    Raises:
        StrategyError: called outside a function that `strategy.run` runs.
        ReplicaError: the loss is a scalar: it was averaged already.

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
        weights = jnp.asarray(sample_weight, losses.dtype)
        losses = losses * weights.reshape(weights.shape + (1,) * (losses.ndim - weights.ndim))
    rows = losses.shape[0] * replica.replicas if global_batch_size is None else global_batch_size
    # An empty batch has a loss of zero, not of 0 / 0.
    return jnp.sum(losses) / jnp.maximum(rows, 1)
