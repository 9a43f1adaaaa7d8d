"""A step function of one replica, as a `Program`.

Idea: the function is run once abstractly, to see which Keras variables it reads and writes and which of its writes
differ between the replicas; then it is a pure function of those variables and its arguments. A pure step,
`(state, batch) -> (state, metrics)`, has a state of its own beside them.

Rule: after a step every replica must hold the same state (`aggregation.py`). Layers and optimizers that are not built
yet make their variables in that first, abstract run; later runs may make none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from anytpu.errors import ReplicaError, StrategyError
from anytpu.program.contract import check_result
from anytpu.program.leaves import leaf_names
from anytpu.program.program import REPLICA_AXIS, Program, Tree, spec_of
from anytpu.strategy.aggregation import Merge, follows_batches, merge_of
from anytpu.strategy.arguments import Form
from anytpu.strategy.current import CURRENT
from anytpu.strategy.replicas import Replica, ReplicaScope, Shard, inside, is_mapped
from anytpu.strategy.rows import mask_metrics
from anytpu.strategy.scopes import system_of


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A step function and what it turned out to be.

    Attributes:
        program: its state is the pair (values of the Keras variables, the state of a pure step or None).
        variables: the Keras variables, in order.
        has_rows: for a batch that does not fill all replicas, which outputs have an axis of rows in front; else None.
    """

    program: Program
    variables: tuple[Any, ...]
    has_rows: Tree


@dataclasses.dataclass(frozen=True)
class Call:
    """One replica's call of a step function, as a pure function of what travels.

    Attributes:
        fn: what one replica does.
        form: the form of its arguments.
        strategy: the strategy that runs it; the function finds it with `get_strategy`.
        is_pure: the function takes its state as its first argument, and returns (state, outputs).
    """

    fn: Callable
    form: Form
    strategy: Any
    is_pure: bool

    @property
    def name(self) -> str:
        """What people call the function."""
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def __call__(self, own: Tree, arrays: list[Any]) -> tuple[Tree, Tree]:
        """Run the function as one replica. Return the new state of a pure step, or None, and the outputs."""
        args, kwargs = self.form.rebuilt(arrays)
        with _as_replica_of(self.strategy, self.form.shard(arrays)):
            if not self.is_pure:
                return None, _outputs(self.name, self.fn(*args, **kwargs))
            result = self.fn(own, *args, **kwargs)
            if not isinstance(result, tuple) or len(result) != 2:
                raise ReplicaError(
                    f"{self.name} was given a state and must return a pair, (state, metrics), not {result!r}. Where "
                    "there is nothing to report, return (state, None)"
                )
            _check_kinds(self.name, own, result[0])
            return result[0], _outputs(self.name, result[1])


def step_of(call: Call, own: Tree) -> Step:
    """Return the step of a call.

    Args:
        call: the function and the form of its arguments.
        own: specs of the state of a pure step; None for a function that has none.

    Raises:
        ReplicaError: a variable that has no aggregation would differ between the replicas, or the function returns what
            is not an array.
        StrategyError: a variable was made in the scope of a strategy on another system that runs.
    """
    form, replicas = call.form, call.strategy.num_replicas_in_sync
    if form.room is not None:
        mask_metrics()
    variables, merges, outputs = _discover(call, own)
    _check_system(variables, call.strategy)
    if form.room is not None:
        _tell_of_statistics(call.name, variables)

    def step(state: tuple[list[Any], Tree], arrays: list[Any]) -> tuple[tuple[list[Any], Tree], Tree]:
        scope = ReplicaScope(list(zip(variables, state[0], strict=True)))
        with scope:
            new_own, outputs = call(state[1], arrays)
        _check_made_none(call.name, scope, variables)
        shard = form.shard(arrays)
        written = [(m, old, scope.held(v)) for m, old, v in zip(merges, state[0], variables, strict=True)]
        return ([new if m is None else m(old, new, shard) for m, old, new in written], new_own), outputs

    program = Program(
        name=call.name,
        step=step,
        state=([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables], own),
        batch=form.specs(),
        layout=form.layouts(),
        replicas=replicas,
        state_names=(*(v.path for v in variables), *leaf_names(own, "state")),
    )
    return Step(program, tuple(variables), _has_rows(call, own, outputs))


def _discover(call: Call, own: Tree) -> tuple[list[Any], list[Merge | None], Tree]:
    """Run the step abstractly.

    Return the variables that it touches, how the new values of each become one, and the specs of the outputs.
    """
    scope = ReplicaScope([], makes_variables=True)
    differs: set[int] = set()
    written: set[int] = set()

    def one(own: Tree, arrays: list[Any]) -> Any:
        _, outputs = call(own, arrays)
        written.update(id(variable) for variable, _ in scope.written())
        differs.update(id(variable) for variable, value in scope.written() if is_mapped(value))
        return outputs

    with scope:
        outputs = _over_replicas(call, one, own)
    merges = [
        merge_of(v, id(v) in scope.overwritten, id(v) in differs) if id(v) in written else None for v in scope.seen
    ]
    return scope.seen, merges, outputs


def _over_replicas(call: Call, one: Callable, own: Tree) -> Tree:
    """Run one replica's function abstractly over all of them, and return the specs of what it returns, stacked."""
    axes = [layout.axis for layout in call.form.layouts()]
    replicas = call.strategy.num_replicas_in_sync
    over = jax.vmap(one, in_axes=(None, axes), axis_name=REPLICA_AXIS, axis_size=replicas)
    return jax.eval_shape(over, own, call.form.specs())


def _has_rows(call: Call, own: Tree, outputs: Tree) -> Tree:
    """Return which outputs have an axis of rows in front: those that grow with the batch."""
    if call.form.room is None:
        return None
    room, longer = call.form.room, dataclasses.replace(call, form=call.form.longer())
    try:
        with ReplicaScope([]):
            grown = _over_replicas(longer, lambda own, arrays: longer(own, arrays)[1], own)
    except Exception:
        # A step for one number of rows only, such as a model with a fixed batch size: whatever has so many has rows.
        return jax.tree.map(lambda one: one.shape[1:2] == (room,), outputs)
    return jax.tree.map(lambda a, b: a.shape[1:2] == (room,) and b.shape[1:2] == (room + 1,), outputs, grown)


@contextlib.contextmanager
def _as_replica_of(strategy: Any, shard: Shard | None) -> Iterator[None]:
    """Run as one replica of a strategy, in its scope."""
    token = CURRENT.set(strategy)
    try:
        with inside(Replica(strategy.num_replicas_in_sync, shard=shard)):
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


def _check_kinds(name: str, own: Tree, new: Tree) -> None:
    """Refuse a state of whole numbers that comes back with fractions: each step would cut them off."""
    before, after = jax.tree.leaves(own), jax.tree.leaves(new)
    if jax.tree.structure(own) != jax.tree.structure(new):
        return
    if any(_kind(jnp.result_type(b)) > _kind(a.dtype) for a, b in zip(before, after, strict=True)):
        check_result(name, spec_of(own), (jax.eval_shape(lambda: new), None))


def _kind(dtype: Any) -> int:
    """Return how much numbers of a dtype may hold: truth, whole numbers, fractions, complex numbers."""
    return sum(jnp.issubdtype(dtype, kind) for kind in (jnp.number, jnp.inexact, jnp.complexfloating))


def _tell_of_statistics(name: str, variables: list[Any]) -> None:
    if any(follows_batches(variable) for variable in variables):
        warnings.warn(
            f"{name} was given a batch that does not fill all replicas, and updates the statistics of BatchNorm: those "
            "of a replica that got some of its rows only are approximate. Leave the last batch out, for example with "
            "batch(rows, drop_remainder=True), or use fit, whose BatchNorm sees the whole batch",
            stacklevel=2,
        )


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
