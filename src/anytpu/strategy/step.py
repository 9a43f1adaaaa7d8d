"""A step function of one replica, as a `Program`.

Idea: the function is run once abstractly, to see which Keras variables it reads and writes and which of its writes
differ between the replicas; then it is a pure function of those variables and its arguments.

Rule: after a step every replica must hold the same state (`aggregation.py`). Layers and optimizers that are not built
yet make their variables in that first, abstract run; later runs may make none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from anytpu.errors import ReplicaError, StrategyError
from anytpu.program.program import REPLICA_AXIS, Program, Tree
from anytpu.strategy.aggregation import Merge, merge_of
from anytpu.strategy.arguments import Form
from anytpu.strategy.current import CURRENT
from anytpu.strategy.replicas import Replica, ReplicaScope, inside, is_mapped
from anytpu.strategy.scopes import system_of


def step_program(fn: Callable, form: Form, strategy: Any) -> tuple[Program, list[Any]]:
    """Return the Program of a step function and the Keras variables that are its state, in order.

    Args:
        fn: what one replica does.
        form: the form of its arguments.
        strategy: the `TPUStrategy` that runs it; the function finds it with `get_strategy`.

    Raises:
        ReplicaError: a variable that has no aggregation would differ between the replicas, or the function returns what
            is not an array.
        StrategyError: a variable was made in the scope of a strategy on another system that runs.
    """
    name = getattr(fn, "__name__", type(fn).__name__)

    def call(arrays: list[Any]) -> Any:
        args, kwargs = form.rebuilt(arrays)
        with _as_replica_of(strategy):
            return _outputs(name, fn(*args, **kwargs))

    variables, merges = _discover(call, form, strategy.num_replicas_in_sync)
    _check_system(variables, strategy)

    def step(state: list[Any], arrays: list[Any]) -> tuple[list[Any], Tree]:
        scope = ReplicaScope(list(zip(variables, state, strict=True)))
        with scope:
            outputs = call(arrays)
        _check_made_none(name, scope, variables)
        written = [scope.held(variable) for variable in variables]
        return [new if m is None else m(old, new) for m, old, new in zip(merges, state, written, strict=True)], outputs

    program = Program(
        name=name,
        step=step,
        state=[jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables],
        batch=form.specs(),
        layout=form.layouts(),
        replicas=strategy.num_replicas_in_sync,
        state_names=tuple(v.path for v in variables),
    )
    return program, variables


def _discover(call: Callable, form: Form, replicas: int) -> tuple[list[Any], list[Merge | None]]:
    """Run the step abstractly. Return the variables that it touches, and how the new values of each become one."""
    scope = ReplicaScope([], makes_variables=True)
    differs: set[int] = set()
    written: set[int] = set()

    def one(arrays: list[Any]) -> Any:
        outputs = call(arrays)
        written.update(id(variable) for variable, _ in scope.written())
        differs.update(id(variable) for variable, value in scope.written() if is_mapped(value))
        return outputs

    axes = [layout.axis for layout in form.layouts()]
    over = jax.vmap(one, in_axes=(axes,), axis_name=REPLICA_AXIS, axis_size=replicas)
    with scope:
        jax.eval_shape(over, form.specs())
    merges = [
        merge_of(v, id(v) in scope.overwritten, id(v) in differs) if id(v) in written else None for v in scope.seen
    ]
    return scope.seen, merges


@contextlib.contextmanager
def _as_replica_of(strategy: Any) -> Iterator[None]:
    """Run as one replica of a strategy, in its scope."""
    token = CURRENT.set(strategy)
    try:
        with inside(Replica(strategy.num_replicas_in_sync)):
            yield
    finally:
        CURRENT.reset(token)


def _outputs(name: str, outputs: Any) -> Any:
    """Return what a step function returned, Keras variables replaced by their values."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, keras.Variable):
            return leaf.value
        if isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex):
            return leaf
        raise ReplicaError(
            f"{name} returns {leaf!r}, and what a function that strategy.run runs returns must be arrays, numbers or "
            "None, or lists, tuples and dictionaries of them. Return anything else from outside of it"
        )

    return jax.tree.map(one, outputs)


def _check_system(variables: list[Any], strategy: Any) -> None:
    for variable in variables:
        home = system_of(variable)
        if home is not None and home is not strategy.system and home.is_running:
            raise StrategyError(
                f"mixing different strategies: the variable {variable.path!r} was made in the scope of a strategy on "
                f"another system than {strategy!r}. Run the function with the strategy that the variable was made "
                "with, or make the model again in this one's scope"
            )


def _check_made_none(name: str, scope: ReplicaScope, variables: list[Any]) -> None:
    known = {id(variable) for variable in variables}
    made = [variable.path for variable in scope.seen if id(variable) not in known]
    if made:
        raise ReplicaError(
            f"{name} makes the variable {made[0]!r} anew each time it runs. Make layers, optimizers and metrics once, "
            "outside the function, and use them in it"
        )
