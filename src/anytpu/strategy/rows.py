"""The rows of a batch that does not fill all replicas: which are real, and what must not count the others.

Idea: every replica runs the same compiled step, so each gets equally many rows; where there are not enough, a replica's
last rows are pads, copies of real ones. Whatever has an axis of rows leaves them out: `compute_average_loss` and the
metrics by themselves, a step that reduces rows on its own by `row_mask`.

Rule: only what has as many rows as the replica's batch is masked. A number counts once a replica, also on one that got
no row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import ReplicaError, StrategyError
from anytpu.strategy.replicas import current_replica


def row_mask(rows: Any) -> Any:
    """Return which rows of this replica's batch are real.

    Args:
        rows: an array with the rows of the batch, `(rows, ...)`.

    Returns:
        bool `(rows,)`: False for the pads of a batch that does not fill all replicas.

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
            "row_mask tells the real rows of one replica's batch: call it inside a function that you pass to "
            "strategy.run. Outside, the parts of a PerReplica have no pads"
        )
    mask = mask_of(rows)
    return jnp.ones(np.shape(rows)[:1], bool) if mask is None else mask


def mask_of(rows: Any) -> Any | None:
    """Return which rows of an array are real; None when all are, or when it has no axis of rows."""
    replica = current_replica()
    if replica is None or replica.shard is None or np.shape(rows)[:1] != (replica.shard.room,):
        return None
    return replica.shard.mask()


def without_pads(values: Any) -> Any:
    """Return values with an axis of rows in front with 0 in the place of those of pads; anything else as it is."""
    mask = mask_of(values)
    return values if mask is None else jnp.where(mask.reshape(mask.shape + (1,) * (values.ndim - 1)), values, 0)


def mask_metrics() -> None:
    """Let each class of metrics leave out the pads; those made since the last call too."""
    classes = [keras.metrics.Metric]
    while classes:
        one = classes.pop()
        classes.extend(one.__subclasses__())
        if "update_state" in vars(one):
            _keras.wrap(one, "update_state", _masking)


def _masking(update_state: Callable) -> Callable:
    signature = inspect.signature(update_state)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = current_replica()
        if replica is None or replica.shard is None:
            return update_state(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        rows = next((one for one in [*args, *kwargs.values()] if mask_of(one) is not None), None)
        if rows is None:
            return update_state(self, *args, **kwargs)
        if "sample_weight" not in signature.parameters:
            raise ReplicaError(
                f"the metric {self.name!r} cannot leave out the pads of a batch that does not fill all replicas: its "
                "update_state takes no sample_weight. Add that argument, or make batches of a size that the replicas "
                "divide"
            )
        bound.arguments["sample_weight"] = weights_of(rows, bound.arguments.get("sample_weight"))
        try:
            return update_state(*bound.args, **bound.kwargs)
        except ValueError as error:
            raise ReplicaError(
                f"the metric {self.name!r} cannot weigh the rows of a batch that does not fill all replicas, which "
                "leaves its pads out. Where labels and predictions are one number a row, pass them as columns, "
                f"(rows, 1). Keras says: {error}"
            ) from error

    return wrapper


def weights_of(rows: Any, given: Any) -> Any:
    """Return the weights of rows, 0 for pads, times those that were given; these as they are where all rows are real.

    Args:
        rows: an array with an axis of rows in front.
        given: weights, or None.
    """
    mask = mask_of(rows)
    if mask is None:
        return given
    weights = mask.astype(keras.config.floatx())
    if given is None:
        return weights
    given = jnp.asarray(given, keras.config.floatx())
    return given * weights.reshape(weights.shape + (1,) * (given.ndim - 1)) if given.ndim else given * weights
