"""Sums over replicas, and over groups of them.

Idea: `jax.lax.psum(..., axis_index_groups=...)` is not supported under `vmap`, which runs the virtual cores. So a group
sum uses only operations that every backend has: all values are gathered, ordered by group, and summed in each group.
Each replica keeps the sum of its group.

Rule: on one replica, and outside of every replica, a sum over the replicas is the value itself.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.errors import SettingError
from anytpu.strategy.replicas import current_replica

Groups = Sequence[Sequence[int]]
"""A group assignment: one list of replica indices for each group. Each replica is in one group; sizes are equal."""


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
