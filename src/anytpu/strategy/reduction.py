"""One value out of one value for each replica."""

from __future__ import annotations

import enum
from typing import Any

import jax
import numpy as np

from anytpu.errors import SettingError
from anytpu.strategy.per_replica import PerReplica, is_per_replica


class ReduceOp(enum.Enum):
    """How the replicas' values become one."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def of(cls, name: Any) -> ReduceOp:
        """Return the operation of a name in any case; an operation is returned as it is."""
        if isinstance(name, cls):
            return name
        if isinstance(name, str) and name.upper() in cls.__members__:
            return cls[name.upper()]
        raise SettingError(f'reduce_op must be "SUM" or "MEAN", not {name!r}')


def reduce(op: ReduceOp, value: Any, axis: int | None) -> Any:
    """Reduce each leaf over the replicas, and over one axis of each replica's value when `axis` is given."""
    return jax.tree.map(lambda leaf: _reduce_one(op, leaf, axis), value, is_leaf=is_per_replica)


def gather(value: Any, axis: int) -> Any:
    """Concatenate each leaf's values along an axis."""
    return jax.tree.map(
        lambda leaf: np.concatenate(leaf.values, axis=axis) if is_per_replica(leaf) else leaf, value, is_leaf=is_per_replica
    )


def _reduce_one(op: ReduceOp, leaf: Any, axis: int | None) -> Any:
    stacked = leaf.stacked() if isinstance(leaf, PerReplica) else np.asarray(leaf)[None]
    axes = (0,) if axis is None else (0, axis + 1 if axis >= 0 else axis)
    return stacked.sum(axes, dtype=stacked.dtype) if op is ReduceOp.SUM else stacked.mean(axes)
