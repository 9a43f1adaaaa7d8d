"""Sums over replicas, and over groups of them.

Idea: `jax.lax.psum(..., axis_index_groups=...)` does not exist under `vmap`, which is how virtual cores run. So the sum
over a group is made of what every backend has: all values are gathered, ordered by group, and added up group by group;
each replica keeps its group's sum.

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
"""A group assignment: a list with one list of replica numbers a group, each replica in one group, all equally many."""


def cross_replica_sum(x: Any, group_assignment: Groups | None = None) -> Any:
    """Return the sum of each replica's `x`, the same on all of them.

    Args:
        x: an array, a number, or a tree of them: this replica's.
        group_assignment: sum within these groups only; `[[0, 1], [2, 3]]` adds replica 0 to 1 and 2 to 3. None is one
            group of all.

    Returns:
        The sums, in a tree like `x`. Outside of every replica, where there is nothing to add, `x` itself.

    Raises:
        SettingError: `group_assignment` is not a list of lists of the same length in which each replica stands once.

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
    """Raise unless this is a group assignment.

    Args:
        groups: what was given.
        replicas: how many replicas there are; None where that is not known, and then it is not looked at.

    Raises:
        SettingError: it is none.
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
    are_whole = all(isinstance(m, numbers.Integral) and not isinstance(m, bool) for m in members)
    if not are_whole or sorted(members) != list(range(count)):
        raise SettingError(
            f"group_assignment must be a permutation of range({count}), each replica's number once, not {groups!r}"
        )


def _sum_in_group(value: Any, axis: str, index: Any, groups: Groups) -> Any:
    # All groups are equally large, so ordered by group they are the rows of a table, and a segment sum is a plain one.
    order = np.array(groups)
    group_of = np.argsort(order.ravel()) // order.shape[1]
    value = jnp.asarray(value)
    gathered = jax.lax.all_gather(value, axis)
    sums = gathered[order.ravel()].reshape(*order.shape, *value.shape).sum(1, dtype=value.dtype)
    return sums[jnp.asarray(group_of)[index]]
