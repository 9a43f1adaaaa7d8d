"""The mask of real rows in a batch that does not fill all replicas.

Idea: every replica runs the same compiled step, so each gets the same number of rows. If there are not enough rows, a
replica's last rows are pads, copies of real ones. The plan of the step (`padded/`) excludes pads from reductions over
rows. A step that combines rows in another way uses `row_mask`.

Rule: only axes that the plan identifies as rows have pads, whatever their length. A scalar counts once per replica,
also on a replica without rows.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from anytpu.errors import StrategyError
from anytpu.strategy.replicas import current_replica


def row_mask(rows: Any) -> Any:
    """Return the mask of real rows in this replica's batch.

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
            "row_mask returns the real rows of one replica's batch: call it inside a function that you pass to "
            "strategy.run. Outside, the parts of a PerReplica have no pads"
        )
    mask = mask_of(rows)
    return jnp.ones(np.shape(rows)[:1], bool) if mask is None else mask


def mask_of(rows: Any) -> Any | None:
    """Return the mask of real rows in an array; None if all rows are real, or if it has no axis."""
    replica = current_replica()
    return None if replica is None or replica.shard is None or not np.ndim(rows) else replica.shard.mask(rows)


def without_pads(values: Any) -> Any:
    """Return values `(rows, ...)` with 0 in the pad rows; return values without pads unchanged."""
    mask = mask_of(values)
    return values if mask is None else jnp.where(mask.reshape(mask.shape + (1,) * (values.ndim - 1)), values, 0)
