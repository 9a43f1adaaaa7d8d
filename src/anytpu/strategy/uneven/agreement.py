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
from anytpu.errors import ReplicaError
from anytpu.program.program import REPLICA_AXIS


@dataclasses.dataclass(eq=False)
class Agreement:
    """The values that each group of replicas tells in one pass of traces, and those of the pass before.

    Numbers that JAX sums are counted apart from values that the step exchanges. A collective of JAX may sum a number in
    some of the passes only.

    Attributes:
        replicas: number of replicas of each group.
        before: for each group, the values of the pass before by their kind; none in the first pass.
        told: for each group, the values of this pass by their kind.
    """

    replicas: tuple[int, ...]
    before: list[dict[str, list[Any]]] = dataclasses.field(default_factory=list)
    told: list[dict[str, list[Any]]] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.told = [{} for _ in self.replicas]
        self.before = self.before or [{} for _ in self.replicas]

    def exchange(self, group: int, value: Any, kind: str = "value") -> list[Any]:
        """Tell a group's value, and return that of each group.

        It is the one of the pass before, else of this pass if the group was traced already, else the given one.
        """
        own = self.told[group].setdefault(kind, [])
        position = len(own)
        own.append(value)
        known = [
            (before.get(kind, []), told.get(kind, [])) for before, told in zip(self.before, self.told, strict=True)
        ]
        others = [[*before[position:], *told[position:], value][0] for before, told in known]
        others[group] = value
        return others

    def is_settled(self) -> bool:
        """Return whether each group was given what the others tell now."""
        told = list(map(_comparable_values, self.told))
        if all(values == told[0] for values in told):
            return True  # Equal values were given to all, also in the first pass.
        return told == list(map(_comparable_values, self.before))


def _comparable_values(values: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {kind: list(map(_comparable, each)) for kind, each in values.items()}


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

    def total(value: Any, is_whole: bool) -> Any | None:
        values = agreement.exchange(group, value, "number")
        if not is_whole:
            raise ReplicaError(
                "a Python number is summed over groups of replicas or over several axes, on a batch that does not fill "
                "all replicas. Sum an array, jnp.asarray(number), or use tpu.cross_replica_sum(number, groups)"
            )
        if len({_comparable(each) for each in values}) == 1:
            return None
        return sum(map(operator.mul, values, agreement.replicas))

    with _jax.numbers_summed(REPLICA_AXIS, total):
        yield


def trace(step: Any, specs: Sequence[Any], replicas: int) -> tuple[Any, Any]:
    """Trace a step of one replica. Return the jaxpr, and the specs of the results as a tree."""
    return jax.make_jaxpr(step, axis_env=[(REPLICA_AXIS, AxisSize(replicas))], return_shape=True)(*specs)
