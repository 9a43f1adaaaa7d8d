"""Where a step is being traced: inside one replica, and which variables it reads and writes there.

Idea: a step function written for one core mutates Keras models, optimizers and metrics. While it is traced, `ReplicaScope`
stands between it and the variables: reads come from the state of the Program, writes go into it.

Rule: a scope opened inside another (to differentiate a loss) falls back on the outer one for what it does not hold.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import keras

from anytpu.program.program import REPLICA_AXIS


@dataclasses.dataclass(frozen=True)
class Replica:
    """The replica that is being traced.

    Attributes:
        replicas: how many replicas run the step together.
    """

    replicas: int

    @property
    def index(self) -> Any:
        """This replica's number, as a traced int32 scalar."""
        return jax.lax.axis_index(REPLICA_AXIS)


_CURRENT: contextvars.ContextVar[Replica | None] = contextvars.ContextVar("replica", default=None)


def current_replica() -> Replica | None:
    """Return the replica that is being traced, or None outside `strategy.run`."""
    return _CURRENT.get()


@contextlib.contextmanager
def inside_replica(replicas: int) -> Iterator[None]:
    """Trace as one of `replicas` replicas."""
    token = _CURRENT.set(Replica(replicas))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def is_mapped(value: Any) -> bool:
    """Say whether a value that is being traced under `vmap` may differ between the replicas.

    JAX has no public name for this (as of 0.10): a value that does not hang on the mapped axis is no batch tracer.
    """
    return type(value).__name__ == "BatchTracer" and getattr(value, "batch_dim", 0) is not None


def is_on_mesh() -> bool:
    """Say whether the replica that is being traced is one device of a mesh, not a lane of a `vmap`."""
    return REPLICA_AXIS in jax.sharding.get_abstract_mesh().manual_axes


class ReplicaScope(keras.StatelessScope):
    """A Keras stateless scope that notes which variables are read, and falls back on the scope around it.

    Attributes:
        seen: the variables that were read or written, in that order.
    """

    def __init__(self, values: list[tuple[Any, Any]], outer: ReplicaScope | None = None) -> None:
        super().__init__(state_mapping=values)
        self.outer = outer
        self.seen: list[Any] = []
        self._known: set[int] = set()
        self._given = {id(variable) for variable, _ in values}

    def get_current_value(self, variable: Any) -> Any:
        """Return the value of a variable here, or in the scope around this one; None when neither holds it."""
        self.note(variable)
        value = super().get_current_value(variable)
        if value is None and self.outer is not None:
            return self.outer.get_current_value(variable)
        return value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Take a write."""
        self.note(update[0])
        super().add_update(update)

    def note(self, variable: Any) -> None:
        """Remember that a variable takes part."""
        if id(variable) not in self._known:
            self._known.add(id(variable))
            self.seen.append(variable)

    def held(self, variable: Any) -> Any:
        """Return the value that this scope itself holds for a variable, or None."""
        return super().get_current_value(variable)

    def written(self) -> list[tuple[Any, Any]]:
        """Return (variable, value) for each variable written in this scope that was not given to it."""
        pairs = [(variable, self.held(variable)) for variable in self.seen if id(variable) not in self._given]
        return [(variable, value) for variable, value in pairs if value is not None]
