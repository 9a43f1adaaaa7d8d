"""Python values that replicas with different numbers of rows exchange while their step is traced.

Idea: `jax.lax.psum(len(x), "replica")` adds no operation: JAX multiplies the number by the replicas while it traces. If
the replicas have different numbers of rows, their numbers differ, and the sum is known only when all are traced. So a
step is traced again until each trace was given what the others told.

Rule: the values are told in the order of the calls, so the traces must make the same calls.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from anytpu import _jax
from anytpu.program.program import REPLICA_AXIS


@dataclasses.dataclass(eq=False)
class Agreement:
    """The values that each group of replicas tells in one pass of traces, and those of the pass before.

    Attributes:
        replicas: number of replicas of each group.
        before: for each group, the values of the pass before; none in the first pass.
        told: for each group, the values of this pass.
    """

    replicas: tuple[int, ...]
    before: list[list[Any]] = dataclasses.field(default_factory=list)
    told: list[list[Any]] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.told = [[] for _ in self.replicas]
        self.before = self.before or [[] for _ in self.replicas]

    def exchange(self, group: int, value: Any) -> list[Any]:
        """Tell a group's value, and return that of each group.

        It is the one of the pass before, else of this pass if the group was traced already, else the given one.
        """
        position = len(self.told[group])
        self.told[group].append(value)
        known = [before[position:] or told[position:] for before, told in zip(self.before, self.told, strict=True)]
        others = [values[0] if values else value for values in known]
        others[group] = value
        return others

    def is_settled(self) -> bool:
        """Return whether each group was given what the others tell now."""
        first = [list(map(_comparable, told)) for told in self.told]
        if all(told == first[0] for told in first):
            return True  # Equal values were given to all, also in the first pass.
        return first == [list(map(_comparable, told)) for told in self.before]


def _comparable(value: Any) -> Any:
    array = np.asarray(value)
    return array.shape, str(array.dtype), array.tobytes()


class AxisSize(int):
    """A size of the replica axis with an identity: JAX's caches of traces do not return those of another pass."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


@contextmanager
def numbers_of(agreement: Agreement, group: int) -> Iterator[None]:
    """Sum the Python numbers of all groups where JAX multiplies one by the number of replicas."""

    def total(value: Any) -> Any | None:
        values = agreement.exchange(group, value)
        if len({_comparable(each) for each in values}) == 1:
            return None
        return sum(map(operator.mul, values, agreement.replicas))

    with _jax.numbers_summed(REPLICA_AXIS, total):
        yield


def trace(step: Any, specs: Sequence[Any], replicas: int) -> tuple[Any, Any]:
    """Trace a step of one replica. Return the jaxpr, and the specs of the results as a tree."""
    return jax.make_jaxpr(step, axis_env=[(REPLICA_AXIS, AxisSize(replicas))], return_shape=True)(*specs)
