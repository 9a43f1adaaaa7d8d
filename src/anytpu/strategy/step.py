"""A step function of one replica, as a `Program`.

Idea: the function is run once abstractly, to see which Keras variables it reads and writes and which of its writes
differ between the replicas; then it is a pure function of those variables and its arguments. A pure step,
`(state, batch) -> (state, metrics)`, has a state of its own beside them.

Rule: after a step every replica must hold the same state (`aggregation.py`). Layers and optimizers that are not built
yet make their variables in that first, abstract run; later runs may make none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend.core import ClosedJaxpr

from anytpu.errors import ReplicaError, StrategyError
from anytpu.program.contract import check_result
from anytpu.program.leaves import leaf_names
from anytpu.program.mapped import is_mapped
from anytpu.program.program import REPLICA_AXIS, REPLICATED, Program, Tree, spec_of
from anytpu.strategy.aggregation import Merge, merge_of
from anytpu.strategy.arguments import Form
from anytpu.strategy.gradient_notice import tell_of_gradients
from anytpu.strategy.modules import ModuleForm, ReplicaState, closed, opened
from anytpu.strategy.padded.step import PaddedStep
from anytpu.strategy.replicas import Replica, ReplicaScope
from anytpu.strategy.scopes import as_replica, system_of

Check = Callable[[ClosedJaxpr], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A step function and what it turned out to be.

    Attributes:
        program: its state is the pair (values of the Keras variables, the state of a pure step or None).
        variables: the Keras variables, in order.
        padded: for a batch that does not fill all replicas, how the step leaves out pads; else None.
        counts: the real rows of each replica for which the step was traced, where it asks for them; else None.
    """

    program: Program
    variables: tuple[Any, ...]
    padded: PaddedStep | None
    counts: tuple[int, ...] | None


@dataclasses.dataclass(frozen=True)
class Call:
    """One replica's call of a step function, as a pure function of what travels.

    Attributes:
        fn: what one replica does.
        form: the form of its arguments.
        strategy: the strategy that runs it; the function finds it with `get_strategy`.
        is_pure: the function takes its state as its first argument, and returns (state, outputs).
        modules: the form of the NNX modules among its arguments, whose arrays are the state then; None without.
        is_recorded: it is traced for a plan that leaves out pads.
    """

    fn: Callable
    form: Form
    strategy: Any
    is_pure: bool
    modules: ModuleForm | None = None
    is_recorded: bool = False

    @property
    def name(self) -> str:
        """What people call the function."""
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def __call__(self, own: Tree, arrays: list[Any]) -> tuple[Tree, Tree]:
        """Run the function as one replica. Return the new state of a pure step, or None, and the outputs."""
        args, kwargs = opened(self.form.rebuilt(arrays))
        with as_replica(self.strategy, self._replica(arrays)):
            if self.modules is not None:
                new, outputs = self.modules.call(self.fn, own, args, kwargs)
                return new, self._outputs(outputs)
            if not self.is_pure:
                return None, self._outputs(self.fn(*args, **kwargs))
            state = ReplicaState(own)
            result = closed(self.fn(opened(state.local), *args, **kwargs))
            if not isinstance(result, tuple) or len(result) != 2:
                raise ReplicaError(
                    f"{self.name} was given a state and must return a pair, (state, metrics), not {result!r}. Where "
                    "there is nothing to report, return (state, None)"
                )
            _check_kinds(self.name, own, result[0])
            return state.merged(result[0]), self._outputs(result[1])

    def _outputs(self, outputs: Any) -> Any:
        """Return what the function returned, Keras variables replaced by their values."""
        return jax.tree.map(lambda leaf: _output(self.name, leaf), closed(outputs, self.form.objects))

    def _replica(self, arrays: list[Any]) -> Replica:
        shared = tuple(array for array, layout in zip(arrays, self.form.layouts(), strict=True) if layout is REPLICATED)
        shard = self.form.shard(arrays, is_recorded=self.is_recorded)
        return Replica(self.strategy.num_replicas_in_sync, shard=shard, shared=shared)


def step_of(call: Call, own: Tree, check: Check | None = None) -> Step:
    """Return the step of a call.

    Args:
        call: the function and the form of its arguments.
        own: specs of the state of a pure step; None for a function that has none.
        check: is called with the function's trace, and raises if it reads what it must not; None allows all.

    Raises:
        ReplicaError: a variable that has no aggregation would differ between the replicas, the function returns what is
            not an array, or it reads an NNX module that is no argument.
        StrategyError: a variable was made in the scope of a strategy on another system that runs.
    """
    form, replicas = call.form, call.strategy.num_replicas_in_sync
    variables, merges = _discover(call, own, check)
    _check_system(variables, call.strategy)

    def step_with(call: Call) -> Callable[[tuple[list[Any], Tree], list[Any]], tuple[tuple[list[Any], Tree], Tree]]:
        def step(state: tuple[list[Any], Tree], arrays: list[Any]) -> tuple[tuple[list[Any], Tree], Tree]:
            scope = ReplicaScope(list(zip(variables, state[0], strict=True)))
            with scope:
                new_own, outputs = call(state[1], arrays)
            _check_made_none(call.name, scope, variables)
            shard = call.form.shard(arrays)
            written = [(m, old, scope.held(v)) for m, old, v in zip(merges, state[0], variables, strict=True)]
            return ([new if m is None else m(old, new, shard) for m, old, new in written], new_own), outputs

        return step

    padded = None if form.room is None else _padded(call, step_with)
    program = Program(
        name=call.name,
        step=step_with(call) if padded is None else padded,
        state=([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables], own),
        batch=form.specs(),
        layout=form.layouts(),
        replicas=replicas,
        state_names=(*(v.path for v in variables), *(call.modules.names if call.modules else leaf_names(own, "state"))),
    )
    counts = None if form.counts is None else form.counts.asked()
    return Step(program, tuple(variables), padded, counts)


def _padded(call: Call, step_with: Callable[[Call], Callable]) -> PaddedStep:
    """Return the step of a batch that does not fill all replicas."""
    form = call.form
    assert form.room is not None

    def step_for(room: int) -> tuple[Callable, list[Any]]:
        traced = dataclasses.replace(call, form=form.of_rows(room), is_recorded=True)
        return step_with(traced), traced.form.parts()

    return PaddedStep(call.name, form.room, step_for, form.has_rows(), call.strategy.num_replicas_in_sync)


def _discover(call: Call, own: Tree, check: Check | None) -> tuple[list[Any], list[Merge | None]]:
    """Run the step abstractly. Return the variables that it touches, and how the new values of each become one."""
    scope = ReplicaScope([], makes_variables=True)
    differs: set[int] = set()
    written: set[int] = set()

    def one(own: Tree, arrays: list[Any]) -> Any:
        scope.begins_here()
        _, outputs = call(own, arrays)
        written.update(id(variable) for variable, _ in scope.written())
        differs.update(id(variable) for variable, value in scope.written() if is_mapped(value))
        return outputs

    with scope:
        _over_replicas(call, one, own, check)
    merges = [
        merge_of(v, id(v) in scope.overwritten, id(v) in differs) if id(v) in written else None for v in scope.seen
    ]
    return scope.seen, merges


def _over_replicas(call: Call, one: Callable, own: Tree, check: Check | None) -> None:
    """Run one replica's function abstractly over all of them."""
    axes = [layout.axis for layout in call.form.layouts()]
    replicas = call.strategy.num_replicas_in_sync
    over = jax.vmap(one, in_axes=(None, axes), axis_name=REPLICA_AXIS, axis_size=replicas)
    trace = jax.make_jaxpr(over)(own, call.form.specs())
    if check is not None:
        check(trace)
    if replicas > 1 and call.strategy.system.topology.is_virtual:
        tell_of_gradients(call.name, trace, replicas)


def _output(name: str, leaf: Any) -> Any:
    if isinstance(leaf, keras.Variable):
        return leaf.value
    if isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex):
        return leaf
    raise ReplicaError(
        f"{name} returns {leaf!r}, and what a function that strategy.run runs returns must be arrays, numbers or "
        "None, or lists, tuples and dictionaries of them. Return anything else from outside of it"
    )


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
