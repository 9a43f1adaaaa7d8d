"""The replica of a step that is being traced, and the scope that records its reads and writes of variables.

Idea: a step function written for one core mutates Keras models, optimizers and metrics. During the trace,
`ReplicaScope` redirects the variables: reads come from the state of the Program, and writes go into it.

Rule: a nested scope (to differentiate a loss) reads values that it does not hold from the outer scope.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Self

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend.core import get_opaque_trace_state

from anytpu import _keras_layers
from anytpu._contexts import value_within
from anytpu.errors import ReplicaError, SettingError, StrategyError
from anytpu.program.program import REPLICA_AXIS

HOLDS_SUM = "_anytpu_holds_sum"
"""Attribute of a variable to which a step assigned a gradient that is summed over the replicas."""


@dataclasses.dataclass(frozen=True)
class ReplicaShard:
    """One replica's part of a batch that does not fill all replicas.

    Attributes:
        rows: number of rows of this replica, 0 for one without rows.
        counts: number of rows of every replica.
        exchange: takes a Python value of this replica, and returns that of every replica.
        is_recorded: False in a trace that only finds the variables of a step.
    """

    rows: int
    counts: tuple[int, ...]
    exchange: Callable[[Any], list[Any]]
    is_recorded: bool = True


@dataclasses.dataclass(frozen=True)
class Replica:
    """The replica that a step function runs as.

    Attributes:
        replicas: number of replicas that run the step together.
        axis: name of the axis of the collectives; None for the single replica of the default strategy, where nothing is
            traced and no collective exists.
        shard: the replica's part of a batch that does not fill all replicas; None when all rows are real.
        shared: the arguments of the step that all replicas share.
        summed: traced gradients that are already summed over the replicas.
        own_rows: traced embeddings of this replica's rows, whose gradients are not summed.
        unmarked: traced gradients that lost the mark of a summed gradient (`summed.py`).
        read_sums: variables that the step reads, in which summed gradients are added up.
        verdicts: for each loss of the step, whether it is equal on all replicas (`loss_shares.py`); the traces of one
            step share them.
        losses: number of losses in this trace, by the place of the loss function.
    """

    replicas: int
    axis: str | None = REPLICA_AXIS
    shard: ReplicaShard | None = None
    shared: tuple[Any, ...] = ()
    summed: list[Any] = dataclasses.field(default_factory=list, compare=False)
    own_rows: list[Any] = dataclasses.field(default_factory=list, compare=False)
    unmarked: list[Any] = dataclasses.field(default_factory=list, compare=False)
    read_sums: list[Any] = dataclasses.field(default_factory=list, compare=False)
    verdicts: dict[Any, bool] = dataclasses.field(default_factory=dict, compare=False)
    losses: dict[Any, int] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def index(self) -> Any:
        """Index of this replica, an int32 scalar."""
        return np.int32(0) if self.axis is None else jax.lax.axis_index(self.axis)

    def has_summed(self) -> bool:
        """Return whether an array of the step may be made of summed gradients that lost their mark."""
        return bool(self.unmarked or self.read_sums)

    def each(self, value: Any) -> list[Any]:
        """Return a Python value, such as a number of rows, of every replica."""
        return [value] * self.replicas if self.shard is None else self.shard.exchange(value)

    def sum(self, value: Any) -> Any:
        """Return the sum of the replicas' values."""
        value = value.value if isinstance(value, keras.Variable) else value
        # Convert to an array: JAX sums a Python number by multiplying it with the replicas, but a number of rows may
        # differ between them.
        return value if self.axis is None else jax.lax.psum(jnp.asarray(value), self.axis)


_CURRENT: contextvars.ContextVar[Replica | None] = contextvars.ContextVar("replica", default=None)
_IS_MERGING: contextvars.ContextVar[bool] = contextvars.ContextVar("is merging", default=False)


def current_replica() -> Replica | None:
    """Return the replica that runs now, or None outside `strategy.run`."""
    return _CURRENT.get()


def inside(replica: Replica) -> contextlib.AbstractContextManager[Any]:
    """Run a step function as this replica."""
    return value_within(_CURRENT, replica)


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Run outside of every replica, in a function that `merge_call` calls."""
    with value_within(_CURRENT, None), value_within(_IS_MERGING, True):
        yield


def is_merging() -> bool:
    """Return whether the caller is in a function that `merge_call` calls."""
    return _IS_MERGING.get()


def refuse_inside(name: str, instead: str) -> None:
    """Raise unless the caller is outside every replica.

    Args:
        name: name of the called method, for the error.
        instead: the advice for a call inside a replica.

    Raises:
        StrategyError: inside a function that `strategy.run` runs.
    """
    if _CURRENT.get() is not None:
        raise StrategyError(
            f"strategy.{name} joins the values of all replicas, and this is inside one of them, in a function that "
            f"strategy.run runs. Call it outside, on the result of run; inside, {instead}"
        )


def check_step(fn: Any, name: str, instead: str, example: str) -> None:
    """Check that `fn` is callable, and that the caller is outside every replica.

    Args:
        fn: the function argument.
        name: name of the called method, for the error.
        instead: the advice for a call inside a replica.
        example: an example of a correct call.
    """
    refuse_inside(name, instead)
    if not callable(fn):
        raise SettingError(f"fn must be a function that one replica runs, not {fn!r}: {example}")


class ReplicaScope(keras.StatelessScope):
    """A Keras stateless scope that records the used variables, and falls back to the outer scope.

    Losses that layers add in it (activity regularizers) are collected, so that `model.losses` has them.

    Attributes:
        outer: the stateless scope to fall back to, or None.
        seen: the variables that were read or written, in order of first use.
        overwritten: ids of the variables that were written before they were read, so that their new value does not
            depend on the old one.
    """

    def __init__(self, values: list[tuple[Any, Any]], outer: Any = None, *, makes_variables: bool = False) -> None:
        """Create a scope with values for some variables.

        Args:
            values: pairs of a variable and its value.
            outer: the stateless scope to fall back to, or None.
            makes_variables: on exit, initialise the variables that layers and optimizers made in the scope.
        """
        super().__init__(state_mapping=values, collect_losses=True, initialize_variables=makes_variables)
        self.outer = outer
        self.seen: list[Any] = []
        self.overwritten: set[int] = set()
        self._known: set[int] = set()
        self._initial = {id(variable): self.held(variable) for variable, _ in values}
        self._level: Any = None

    def __enter__(self) -> Self:
        """Enter the scope: it accepts writes of the function that JAX traces now."""
        self.begins_here()
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        """Leave the scope, and initialise the variables that were made in it."""
        try:
            super().__exit__(*args)
        except BaseException:
            _keras_layers.forget_all_uninitialized()
            raise

    def begins_here(self) -> None:
        """Accept writes of the function that JAX traces now, if the scope was entered outside of it."""
        self._level = get_opaque_trace_state()

    def get_current_value(self, variable: Any) -> Any:
        """Return the value of a variable in this scope or the outer one; None if neither holds it."""
        self._record(variable)
        replica = current_replica()
        if replica is not None and vars(variable).get(HOLDS_SUM):
            replica.read_sums.append(variable)
        value = super().get_current_value(variable)
        if value is None and self.outer is not None:
            return self.outer.get_current_value(variable)
        return value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Record a write.

        Raises:
            ReplicaError: the write is in a nested function that JAX traces, and the value cannot leave that function.
        """
        if get_opaque_trace_state() != self._level:
            raise ReplicaError(_nested_write_message(update[0]))
        if id(update[0]) not in self._known:
            self.overwritten.add(id(update[0]))
        self._record(update[0])
        super().add_update(update)

    def held(self, variable: Any) -> Any:
        """Return the value that this scope itself holds for a variable, or None."""
        return super().get_current_value(variable)

    def written(self) -> list[tuple[Any, Any]]:
        """Return (variable, value) for each variable that was written in this scope."""
        pairs = [(variable, self.held(variable)) for variable in self.seen]
        return [(variable, value) for variable, value in pairs if value is not self._initial.get(id(variable))]

    def _record(self, variable: Any) -> None:
        if id(variable) not in self._known:
            self._known.add(id(variable))
            self.seen.append(variable)


class MadeVariables(Exception):
    """Ends a trace whose loss function has made variables, which the step may have looked for before."""


class BuildScope(ReplicaScope):
    """The scope of an abstract call of a step, in which layers and optimizers make their variables.

    A step names the variables of a layer, and only then does its loss function call the layer. So in this scope
    `value_and_grad` calls the loss function first. If that makes variables, the trace ends, and begins again with them.
    """

    def __init__(self) -> None:
        super().__init__([], makes_variables=True)
        self._before = _keras_layers.uninitialized_count()

    @property
    def has_made_variables(self) -> bool:
        """Whether variables were made since the scope was made; ask before it exits."""
        return _keras_layers.uninitialized_count() > self._before

    def build(self, call_loss: Callable[[], Any]) -> None:
        """Call a loss function.

        Raises:
            MadeVariables: it has made variables.
        """
        before = _keras_layers.uninitialized_count()
        call_loss()
        if _keras_layers.uninitialized_count() > before:
            raise MadeVariables


def _nested_write_message(variable: Any) -> str:
    return (
        f"the variable {variable.path!r} is assigned inside a function that JAX traces by itself, such as the body of "
        "jax.lax.scan or a branch of jax.lax.cond: the value cannot leave that function. Return the value from it, and "
        "assign it outside. Or use tpu.repeat or tpu.while_loop for a loop that assigns, "
        "variable.assign(jnp.where(condition, new, variable.value)) for a branch, and tpu.value_and_grad for gradients"
    )
