"""Reductions over the replicas, outside of them (`strategy.reduce`, `strategy.gather`) and inside (sums over groups).

Idea: `jax.lax.psum(..., axis_index_groups=...)` is not supported under `vmap`, which runs the virtual cores. So a group
sum uses only operations that every backend has: all values are gathered, ordered by group, and summed in each group.
Each replica keeps the sum of its group.

Rule: on one replica, and outside of every replica, a sum over the replicas is the value itself.
"""

from __future__ import annotations

import enum
import math
import numbers
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu._calls import explain_arguments
from anytpu.errors import ReplicaError, SettingError
from anytpu.strategy.per_replica import PerReplica, is_key, is_per_replica, is_traced, refuse_keys
from anytpu.strategy.replicas import current_replica

Groups = Sequence[Sequence[int]]
"""A group assignment: one list of replica indices for each group. Each replica is in one group; sizes are equal."""


class ReduceOp(enum.Enum):
    """The reduction of the replicas' values to one value."""

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def of(cls, name: Any) -> ReduceOp:
        """Return the operation with a name in any case; an operation is returned unchanged.

        Raises:
            SettingError: no operation has this name.
        """
        if isinstance(name, cls):
            return name
        if isinstance(name, str) and name.upper() in cls.__members__:
            return cls[name.upper()]
        raise SettingError(f'reduce_op must be "SUM" or "MEAN", not {name!r}')


def reduce(op: ReduceOp, value: Any, axis: Any, replicas: int = 1) -> Any:
    """Reduce each leaf over the replicas, and over axes of each replica's value if `axis` is not None.

    Args:
        op: the operation.
        value: a tree of `PerReplica` and of plain values, each of which is the value of every replica.
        axis: the axis, a tuple of axes, or None.
        replicas: number of replicas, the multiplicity of a plain value.
    """
    refuse_keys("strategy.reduce", value)
    axis = _checked_axes(axis)
    return jax.tree.map(lambda leaf: _reduce_leaf(op, leaf, axis, replicas), value, is_leaf=is_per_replica)


def gather(value: Any, axis: int) -> Any:
    """Concatenate each leaf's values along an axis."""
    return jax.tree.map(lambda leaf: _gather_leaf(leaf, axis), value, is_leaf=is_per_replica)


def _checked_axes(axis: Any) -> tuple[int, ...] | None:
    """Return the axes that `reduce` was given as a tuple of integers."""
    if axis is None:
        return None
    axes = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    if any(not isinstance(one, numbers.Integral) or isinstance(one, bool) for one in axes):
        raise SettingError(f"axis must be an integer, a tuple of integers such as (0, 1), or None, not {axis!r}")
    return tuple([int(one) for one in axes])


def _reduce_leaf(op: ReduceOp, leaf: Any, axes: tuple[int, ...] | None, replicas: int) -> Any:
    if axes is None:
        if not isinstance(leaf, PerReplica) and op is ReduceOp.SUM and replicas > 1:
            _check_zero(leaf, replicas)
        stacked = leaf.stacked() if isinstance(leaf, PerReplica) else _array(leaf)[None]
        return stacked.mean(0) if op is ReduceOp.MEAN else stacked.sum(0, dtype=_sum_dtype(stacked))
    parts = _parts(leaf, axes, "reduce") * (1 if isinstance(leaf, PerReplica) else replicas)
    # Replicas may have different numbers of rows: the mean weighs each row equally.
    total = sum(part.sum(axes, dtype=_sum_dtype(part)) for part in parts)
    if op is ReduceOp.SUM:
        return total
    return total / sum(math.prod([part.shape[axis] for axis in axes]) for part in parts)


def _check_zero(value: Any, replicas: int) -> None:
    """Reject the sum of one value for all replicas, unless it is zero."""
    if not is_traced(value) and not np.any(np.asarray(value)):
        return
    what = f"an array of shape {value.shape}" if np.ndim(value) else repr(value)
    raise ReplicaError(
        f'strategy.reduce("SUM", ...) was given {what}, one value for all {replicas} replicas and not one for each: '
        "pass what strategy.run returned. For the value itself type "
        'strategy.reduce("MEAN", value, axis=None); for its sum over the replicas, '
        "value * strategy.num_replicas_in_sync"
    )


def _gather_leaf(leaf: Any, axis: int) -> Any:
    if not isinstance(leaf, PerReplica):
        return leaf
    parts = _parts(leaf, (axis,), "gather")
    if len({_without(part.shape, axis) for part in parts}) > 1:
        raise ReplicaError(
            f"the values of this PerReplica have shapes {', '.join(str(part.shape) for part in parts)}, and "
            f"gather(axis={axis}) needs them to be equal in every axis but {axis}: look at the parts with value.values"
        )
    is_jax = is_traced(parts[0]) or is_key(parts[0])
    return jnp.concatenate(parts, axis) if is_jax else np.concatenate(parts, axis)


def _parts(leaf: Any, axes: tuple[int, ...], name: str) -> list[Any]:
    parts = [_array(part) for part in (leaf.values if isinstance(leaf, PerReplica) else (leaf,))]
    for part in parts:
        axis = next((axis for axis in axes if not -part.ndim <= axis < part.ndim), None)
        if axis is not None:
            raise SettingError(
                f"{name} was given axis={axis}, and a replica's value has the shape {part.shape}: "
                'the axis counts the axes of one value, from 0; strategy.reduce("SUM", value, axis=None) takes values '
                "of any shape"
            )
        if len({axis % part.ndim for axis in axes}) < len(axes):
            raise SettingError(f"{name} was given axis={axes}, which names an axis of the shape {part.shape} twice")
    return parts


def _array(value: Any) -> Any:
    return value if is_traced(value) or is_key(value) else np.asarray(value)


def _sum_dtype(array: np.ndarray) -> Any:
    """Return the dtype of a sum: that of the values, or int32 for booleans."""
    return np.int32 if array.dtype == bool else array.dtype


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    position = axis % len(shape)
    return shape[:position] + shape[position + 1 :]


@explain_arguments
def cross_replica_sum(x: Any, group_assignment: Groups | None = None) -> Any:
    """Return the sum of each replica's `x`, the same on all of them.

    Args:
        x: this replica's value: an array, a number, or a tree of them.
        group_assignment: sum within these groups only; `[[0, 1], [2, 3]]` adds replica 0 to 1 and 2 to 3. None is one
            group of all.

    Returns:
        The sums, in a tree like `x`. Outside of every replica, `x` itself.

    Raises:
        SettingError: `group_assignment` is not a list of lists of the same length that contain each replica once.

    Example:
        >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=4))
        >>> parts = PerReplica([1.0, 2.0, 3.0, 4.0])
        >>> [float(v) for v in strategy.run(cross_replica_sum, args=(parts,)).values]
        [10.0, 10.0, 10.0, 10.0]
        >>> in_pairs = strategy.run(lambda x: cross_replica_sum(x, [[0, 1], [2, 3]]), args=(parts,))
        >>> [float(v) for v in in_pairs.values]
        [3.0, 3.0, 7.0, 7.0]
    """
    replica = current_replica()
    if group_assignment is not None:
        check_groups(group_assignment, replica.replicas if replica else None)
    refuse_keys("cross_replica_sum", x)
    if replica is None or replica.axis is None:
        return x
    if group_assignment is None:
        return jax.tree.map(replica.sum, x)
    axis, index = replica.axis, replica.index
    return jax.tree.map(lambda leaf: _sum_in_group(leaf, axis, index, group_assignment), x)


def check_groups(groups: Any, replicas: int | None = None) -> None:
    """Check that a value is a group assignment.

    Args:
        groups: the value to check.
        replicas: number of replicas; None if it is unknown, and then it is not checked.

    Raises:
        SettingError: `groups` is not a group assignment.
    """
    if not isinstance(groups, list | tuple) or not groups or not all(isinstance(g, list | tuple) for g in groups):
        raise SettingError(
            f"group_assignment must be a list of list of replica numbers, such as [[0, 1], [2, 3]], not {groups!r}"
        )
    sizes = [len(group) for group in groups]
    if len(set(sizes)) > 1:
        raise SettingError(
            f"the size of each subgroup in group_assignment must be equal, and {list(groups)!r} has groups of "
            f"{', '.join(map(str, sizes))} replicas"
        )
    members = [member for group in groups for member in group]
    count = len(members) if replicas is None else replicas
    are_integers = all(isinstance(m, numbers.Integral) and not isinstance(m, bool) for m in members)
    if not are_integers or sorted(members) != list(range(count)):
        raise SettingError(
            f"group_assignment must be a permutation of range({count}), each replica's number once, not {groups!r}"
        )


def _sum_in_group(value: Any, axis: str, index: Any, groups: Groups) -> Any:
    # All groups have the same size, so the values ordered by group form a (group, member) array, summed over axis 1.
    order = np.array(groups)
    group_of = np.argsort(order.ravel()) // order.shape[1]
    value = jnp.asarray(value)
    gathered = jax.lax.all_gather(value, axis)
    sums = gathered[order.ravel()].reshape(*order.shape, *value.shape).sum(1, dtype=value.dtype)
    return sums[jnp.asarray(group_of)[index]]
