"""Where a step is being traced: inside one replica, and which variables it reads and writes there.

Idea: a step function written for one core mutates Keras models, optimizers and metrics. While it is traced,
`ReplicaScope` stands between it and the variables: reads come from the state of the Program, writes go into it.

Rule: a scope opened inside another (to differentiate a loss) falls back on the outer one for what it does not hold.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend.core import get_opaque_trace_state

from anytpu import _keras
from anytpu.errors import ReplicaError, StrategyError
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.recorded import record_mask


class RowCounts:
    """The real rows of every replica's part of a batch, known when a step is traced.

    A step that asks for them is compiled for these counts alone; any other for all counts at once.

    Args:
        counts: one for each replica.
    """

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.was_asked = False
        self._counts = counts

    def ask(self) -> tuple[int, ...]:
        """Return the counts, for a step that depends on them."""
        self.was_asked = True
        return self._counts

    def asked(self) -> tuple[int, ...] | None:
        """Return the counts if a step depends on them."""
        return self._counts if self.was_asked else None

    def are(self, counts: tuple[int, ...] | None) -> bool:
        """Say whether a step that was compiled for these counts fits; None are all counts."""
        return counts is None or counts == self._counts


@dataclasses.dataclass(frozen=True)
class Shard:
    """One replica's part of a batch that does not fill all replicas: its real rows, then pads that repeat real rows.

    Attributes:
        rows: how many rows are real, an int32 scalar; 0 for a replica that got none.
        room: how many rows there are with the pads, the same for every replica.
        counts: the real rows of every replica; None in a loop of many steps, which runs batches of other counts too.
        is_recorded: the step is traced for a plan that leaves out pads (`padded/`).
    """

    rows: Any
    room: int
    counts: RowCounts | None = None
    is_recorded: bool = False

    def mask(self, rows: Any) -> Any:
        """Return which entries of an array's first axis are no pads, bool `(rows,)`.

        A step that is not recorded is run abstractly only, where the shape alone counts.
        """
        return record_mask(jnp.asarray(rows)) if self.is_recorded else jnp.arange(np.shape(rows)[0]) < self.rows


@dataclasses.dataclass(frozen=True)
class Replica:
    """The replica that a step function runs as.

    Attributes:
        replicas: how many replicas run the step together.
        axis: the name of the axis that joins them; None for the one replica of the default strategy, where nothing is
            traced and no collective exists.
        shard: the replica's part of a batch that does not fill all replicas; None when all rows are real.
        averages_losses: a loss may be the mean over this replica's rows: who runs the step divides by the replicas.
        shared: the arguments of the step that go to all replicas, one value for all of them.
        summed: gradients that are summed over the replicas already, as they are traced.
    """

    replicas: int
    axis: str | None = REPLICA_AXIS
    shard: Shard | None = None
    averages_losses: bool = False
    shared: tuple[Any, ...] = ()
    summed: list[Any] = dataclasses.field(default_factory=list, compare=False)

    @property
    def index(self) -> Any:
        """This replica's number, as an int32 scalar."""
        return np.int32(0) if self.axis is None else jax.lax.axis_index(self.axis)

    def sum(self, value: Any) -> Any:
        """Return the sum of the replicas' values."""
        value = value.value if isinstance(value, keras.Variable) else value
        # An array: JAX multiplies a Python number by the replicas, and a number of rows differs between them.
        return value if self.axis is None else jax.lax.psum(jnp.asarray(value), self.axis)


_CURRENT: contextvars.ContextVar[Replica | None] = contextvars.ContextVar("replica", default=None)
_IS_MERGING: contextvars.ContextVar[bool] = contextvars.ContextVar("is merging", default=False)


def current_replica() -> Replica | None:
    """Return the replica that runs now, or None outside `strategy.run`."""
    return _CURRENT.get()


@contextlib.contextmanager
def inside(replica: Replica) -> Iterator[None]:
    """Run a step function as this replica."""
    token = _CURRENT.set(replica)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextlib.contextmanager
def averaging_losses() -> Iterator[None]:
    """Let losses be means over one replica's rows, for a step that divides them by the number of replicas itself."""
    replica = _CURRENT.get()
    assert replica is not None
    with inside(dataclasses.replace(replica, averages_losses=True)):
        yield


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Run as nobody in particular, in between the replicas: what `merge_call` calls."""
    replica, merging = _CURRENT.set(None), _IS_MERGING.set(True)
    try:
        yield
    finally:
        _IS_MERGING.reset(merging)
        _CURRENT.reset(replica)


def is_merging() -> bool:
    """Say whether this is a function that `merge_call` calls."""
    return _IS_MERGING.get()


def refuse_inside(name: str, instead: str) -> None:
    """Raise unless the caller is outside every replica.

    Args:
        name: what is called, for the error.
        instead: what to type inside a replica.

    Raises:
        StrategyError: inside a function that `strategy.run` runs.
    """
    if _CURRENT.get() is not None:
        raise StrategyError(
            f"strategy.{name} joins the values of all replicas, and this is inside one of them, in a function that "
            f"strategy.run runs. Call it outside, on what run returns; inside, {instead}"
        )


def is_on_mesh() -> bool:
    """Say whether the replica that is being traced is one device of a mesh, not a lane of a `vmap`."""
    return REPLICA_AXIS in jax.sharding.get_abstract_mesh().manual_axes


class ReplicaScope(keras.StatelessScope):
    """A Keras stateless scope that notes which variables take part, and falls back on the scope around it.

    Losses that layers add in it (activity regularizers) are collected, so that `model.losses` has them.

    Attributes:
        seen: the variables that were read or written, in that order.
        overwritten: ids of the variables that were written before anybody had read them, so that their new value does
            not hang on the old one.
    """

    def __init__(self, values: list[tuple[Any, Any]], outer: Any = None, *, makes_variables: bool = False) -> None:
        """Open with values for some variables.

        Args:
            values: pairs of a variable and its value.
            outer: the stateless scope to fall back on, or None.
            makes_variables: initialise the variables that layers and optimizers make inside when the scope is left.
        """
        super().__init__(state_mapping=values, collect_losses=True, initialize_variables=makes_variables)
        self.outer = outer
        self.seen: list[Any] = []
        self.overwritten: set[int] = set()
        self._known: set[int] = set()
        self._given = {id(variable): self.held(variable) for variable, _ in values}
        self._level: Any = None

    def __enter__(self) -> Self:
        """Enter the scope: the function that JAX traces now is the one whose writes it takes."""
        self.begins_here()
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        """Leave the scope, and make the variables that were asked for in it."""
        try:
            super().__exit__(*args)
        except BaseException:
            _keras.forget_all_uninitialized()
            raise

    def begins_here(self) -> None:
        """Take writes of the function that JAX traces now, where the scope was entered outside of it."""
        self._level = get_opaque_trace_state()

    def get_current_value(self, variable: Any) -> Any:
        """Return the value of a variable here, or in the scope around this one; None when neither holds it."""
        self._note(variable)
        value = super().get_current_value(variable)
        if value is None and self.outer is not None:
            return self.outer.get_current_value(variable)
        return value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Take a write.

        Raises:
            ReplicaError: it is made inside of another function that JAX traces, which its value cannot leave.
        """
        if get_opaque_trace_state() != self._level:
            raise ReplicaError(_written_inside(update[0]))
        if id(update[0]) not in self._known:
            self.overwritten.add(id(update[0]))
        self._note(update[0])
        super().add_update(update)

    def held(self, variable: Any) -> Any:
        """Return the value that this scope itself holds for a variable, or None."""
        return super().get_current_value(variable)

    def written(self) -> list[tuple[Any, Any]]:
        """Return (variable, value) for each variable that was written in this scope."""
        pairs = [(variable, self.held(variable)) for variable in self.seen]
        return [(variable, value) for variable, value in pairs if value is not self._given.get(id(variable))]

    def _note(self, variable: Any) -> None:
        if id(variable) not in self._known:
            self._known.add(id(variable))
            self.seen.append(variable)


def _written_inside(variable: Any) -> str:
    return (
        f"the variable {variable.path!r} is assigned inside a function that JAX traces by itself, such as the body of "
        "jax.lax.scan or a branch of jax.lax.cond: the value cannot leave that function. Return the value from it, and "
        "assign it outside. Or use tpu.repeat or tpu.while_loop for a loop that assigns, "
        "variable.assign(jnp.where(condition, new, variable.value)) for a branch, and tpu.value_and_grad for gradients"
    )
