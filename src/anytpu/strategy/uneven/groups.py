"""The two ways to run groups of replicas beside each other: as lanes of one device, or as devices of a mesh.

Idea: a group is consecutive replicas with equal numbers of rows. On one device a group is a `vmap` over its lanes. On a
mesh each device takes its group's branch of a switch; a value of another group is there too, with any content.

Rule: a `Value` with an identity is equal on all replicas of its group, and computed once. Two groups with the same
identity have the same value.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from anytpu import _jax
from anytpu.program.program import REPLICA_AXIS


class Group(NamedTuple):
    """Consecutive replicas with equal numbers of rows.

    Attributes:
        start: index of the first replica.
        replicas: number of replicas.
        rows: number of rows of each.
    """

    start: int
    replicas: int
    rows: int


def groups_of(counts: Sequence[int]) -> tuple[Group, ...]:
    """Return the groups of replicas with these numbers of rows.

    Example:
        >>> groups_of((4, 4, 2))
        (Group(start=0, replicas=2, rows=4), Group(start=2, replicas=1, rows=2))
    """
    starts = [index for index, rows in enumerate(counts) if index == 0 or rows != counts[index - 1]]
    ends = [*starts[1:], len(counts)]
    return tuple(Group(start, end - start, counts[start]) for start, end in zip(starts, ends, strict=True))


class Value(NamedTuple):
    """A value of one group.

    Attributes:
        array: the array; on one device, without an identity, with a leading axis of the group's lanes.
        identity: what was computed, if it is equal on all replicas of the group; None if each has its own.
    """

    array: Any
    identity: Hashable | None


PerGroup = list[list[Value]]
"""For each group, some of its values."""


def is_equal(values: Sequence[Value]) -> bool:
    """Return whether one value of each group is equal on all replicas."""
    return values[0].identity is not None and all(value.identity == values[0].identity for value in values)


Task = Callable[[Any, list[Any]], list[Any]]
"""The work of one replica between two collectives: `task(index, arrays) -> arrays`."""


class Groups(abc.ABC):
    """The groups of a step.

    Args:
        groups: the groups, in the order of the replicas.
    """

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self.groups = groups
        self.replicas = sum(group.replicas for group in groups)

    @abc.abstractmethod
    def compute(self, tasks: list[Task], operands: list[list[Value]], specs: list[list[Any]]) -> list[list[Any]]:
        """Run each group's task. Return each group's arrays, every replica with its own.

        Args:
            tasks: one for each group.
            operands: the operands of each group.
            specs: for each group, the specs of one replica's results.
        """

    @abc.abstractmethod
    def joined(self, values: Sequence[Value]) -> Any:
        """Return one value of each group, all of one shape, as one array over all replicas."""

    @abc.abstractmethod
    def collect(self, collective: Callable[..., Any], operands: list[Any], own: list[bool]) -> list[Any]:
        """Run a collective on operands over all replicas.

        Args:
            collective: takes the operands of one replica, and returns its results.
            operands: arrays of `joined`, or one array that all replicas share.
            own: for each operand, whether each replica has its own.

        Returns:
            The results over all replicas.
        """

    @abc.abstractmethod
    def shared(self, joined: Any) -> Any:
        """Return the value that is equal on all replicas of an array over all replicas."""

    @abc.abstractmethod
    def cut(self, joined: Any) -> list[Any]:
        """Return each group's part of an array over all replicas."""

    @abc.abstractmethod
    def own(self, value: Value, group: Group) -> Any:
        """Return a value as one that each replica of its group has for itself."""

    @abc.abstractmethod
    def steps_first(self, array: Any) -> Any:
        """Return a stack of steps that each replica has for itself with the axis of steps first."""

    @abc.abstractmethod
    def steps_last(self, array: Any) -> Any:
        """Return the stack that `steps_first` was given."""

    @abc.abstractmethod
    def total(self, losses: Sequence[Value]) -> Any:
        """Return the number whose gradients, `summed`, are those of the sum of the losses of all replicas."""

    @abc.abstractmethod
    def summed(self, gradient: Any, is_shared: bool) -> list[Any]:
        """Return for each group the sum over the replicas of the gradients of `total`.

        Args:
            gradient: the gradient by a value that all replicas share; or one for each group, by its own value. If the
                shapes of the groups differ, each group has the sum over its own replicas.
            is_shared: whether all replicas share the value.
        """


@final
class Lanes(Groups):
    """The replicas as lanes of one device."""

    def compute(self, tasks: list[Task], operands: list[list[Value]], specs: list[list[Any]]) -> list[list[Any]]:
        """Run each group's task under `vmap`."""
        results = []
        for group, task, values in zip(self.groups, tasks, operands, strict=True):
            axes = [None if value.identity is not None else 0 for value in values]
            run = jax.vmap(task, in_axes=(0, axes), axis_size=group.replicas)
            indices = jnp.arange(group.start, group.start + group.replicas, dtype="int32")
            results.append(run(indices, [value.array for value in values]))
        return results

    def joined(self, values: Sequence[Value]) -> Any:
        """Concatenate the lanes of all groups."""
        return jnp.concatenate([self.own(*pair) for pair in zip(values, self.groups, strict=True)])

    def collect(self, collective: Callable[..., Any], operands: list[Any], own: list[bool]) -> list[Any]:
        """Run a collective as a reduction over the lanes."""
        axes = [0 if flag else None for flag in own]
        run = jax.vmap(collective, in_axes=tuple(axes), axis_name=REPLICA_AXIS, axis_size=self.replicas)
        return run(*operands)

    def shared(self, joined: Any) -> Any:
        """Return the value of the first lane."""
        return joined[0]

    def cut(self, joined: Any) -> list[Any]:
        """Cut the lanes of each group."""
        return [joined[group.start : group.start + group.replicas] for group in self.groups]

    def own(self, value: Value, group: Group) -> Any:
        """Repeat a value that the lanes share."""
        if value.identity is None:
            return value.array
        return jnp.broadcast_to(value.array, (group.replicas, *jnp.shape(value.array)))

    def steps_first(self, array: Any) -> Any:
        """Exchange the axes of lanes and of steps."""
        return jnp.swapaxes(array, 0, 1)

    steps_last = steps_first

    def total(self, losses: Sequence[Value]) -> Any:
        """Sum the losses of all lanes."""
        return sum(jnp.sum(self.own(*pair)) for pair in zip(losses, self.groups, strict=True))

    def summed(self, gradient: Any, is_shared: bool) -> list[Any]:
        """Return the gradient of a shared value, which covers all lanes, or sum those of the lanes."""
        if is_shared:
            return [gradient] * len(self.groups)
        sums = [part.sum(0) for part in gradient]
        return sums if len({part.shape for part in sums}) > 1 else [sum(sums[1:], sums[0])] * len(sums)


class _WithoutLanes(Groups):
    """Groups whose arrays have no axis of replicas: a value is that of the replica that runs now."""

    def collect(self, collective: Callable[..., Any], operands: list[Any], own: list[bool]) -> list[Any]:
        """Run the collective of the devices."""
        return collective(*operands)

    def shared(self, joined: Any) -> Any:
        """Return the value, which is that of all."""
        return joined

    def cut(self, joined: Any) -> list[Any]:
        """Return the value for each group."""
        return [joined] * len(self.groups)

    def own(self, value: Value, group: Group) -> Any:
        """Return the array."""
        return value.array

    def steps_first(self, array: Any) -> Any:
        """Return the array."""
        return array

    def refuse(self, *_: Any, **__: Any) -> Any:
        """Raise: a replica by itself meets no other."""
        raise AssertionError("a collective runs with all groups")

    steps_last = steps_first


@final
class Devices(_WithoutLanes):
    """The replicas as devices of a mesh, in a `shard_map`."""

    @property
    def _branch(self) -> Any:
        """Index of this device's group."""
        table = np.repeat(np.arange(len(self.groups), dtype=np.int32), [group.replicas for group in self.groups])
        return jnp.asarray(table)[jax.lax.axis_index(REPLICA_AXIS)]

    def compute(self, tasks: list[Task], operands: list[list[Value]], specs: list[list[Any]]) -> list[list[Any]]:
        """Run the task of this device's group."""
        index = jax.lax.axis_index(REPLICA_AXIS)

        def branch(group: int) -> Callable[[list[list[Any]]], list[list[Any]]]:
            def run(arrays: list[list[Any]]) -> list[list[Any]]:
                results = [list(map(blank, own)) for own in specs]
                results[group] = tasks[group](index, arrays[group])
                return results

            return run

        arrays = [[value.array for value in values] for values in operands]
        return jax.lax.switch(self._branch, [branch(group) for group in range(len(tasks))], arrays)

    def joined(self, values: Sequence[Value]) -> Any:
        """Return the value of this device's group."""
        first = values[0].array
        if all(value.array is first for value in values):
            return first
        return jax.lax.select_n(self._branch, *[jnp.asarray(value.array) for value in values])

    def total(self, losses: Sequence[Value]) -> Any:
        """Return the loss of this device: the gradients are summed afterwards."""
        return self.joined(losses)

    def summed(self, gradient: Any, is_shared: bool) -> list[Any]:
        """Sum the gradients of the devices."""
        if not is_shared and len({jnp.shape(part) for part in gradient}) > 1:
            return gradient
        own = gradient if is_shared else self.joined([Value(part, None) for part in gradient])
        return [jax.lax.psum(own, REPLICA_AXIS)] * len(self.groups)


@final
class Single(_WithoutLanes):
    """One replica by itself, inside of a group's work: it runs no collective.

    Args:
        index: index of the replica.
    """

    def __init__(self, index: Any) -> None:
        super().__init__((Group(0, 1, 0),))
        self._index = index

    def compute(self, tasks: list[Task], operands: list[list[Value]], specs: list[list[Any]]) -> list[list[Any]]:
        """Run the task."""
        return [tasks[0](self._index, [value.array for value in operands[0]])]

    def joined(self, values: Sequence[Value]) -> Any:
        """Return the value."""
        return values[0].array

    total = summed = _WithoutLanes.refuse


def blank(spec: Any) -> Any:
    """Return an array of a spec that no device reads."""
    if jnp.issubdtype(spec.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0, impl=_jax.key_implementation(spec)), spec.shape)
    return jnp.zeros(spec.shape, spec.dtype)
