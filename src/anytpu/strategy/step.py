"""Conversion of a replica's step function to a `Program`.

Idea: the function is traced once abstractly, to find the Keras variables that it reads and writes, and the writes that
differ between replicas. Then it is a pure function of those variables and its arguments. A pure step,
`(state, batch) -> (state, metrics)`, also has an explicit state.

Rule: after a step every replica must hold the same state (`assignments.py`). Unbuilt layers and optimizers make their
variables in the first, abstract trace; later traces must not make variables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend.core import ClosedJaxpr

from anytpu import _jax
from anytpu.errors import ReplicaError, StrategyError
from anytpu.program.program import REPLICA_AXIS, REPLICATED, Program, Tree, leaf_names, spec_of
from anytpu.program.refusals import check_result
from anytpu.program.summed_products import with_summed_products
from anytpu.strategy.arguments import ArgumentForm, promoted_state, weak_spec_of, with_weak_types
from anytpu.strategy.assignments import Merge, merge_of
from anytpu.strategy.gradients import warn_of_large_sums
from anytpu.strategy.modules import ModuleForm, ReplicaState, unwrap_static_leaves, wrap_static_leaves
from anytpu.strategy.replicas import Replica, ReplicaScope, ReplicaShard
from anytpu.strategy.scopes import as_replica, system_of
from anytpu.strategy.uneven.agreement import Agreement
from anytpu.strategy.uneven.step import UnevenStep, agreed, exchange_of
from anytpu.strategy.whole_step import whole_program

TraceCheck = Callable[[ClosedJaxpr], None]


@dataclasses.dataclass(frozen=True, eq=False)
class ReplicaStep:
    """A traced step function.

    Attributes:
        program: the Program. Its state is the pair (values of the Keras variables, state of a pure step or None).
        variables: the Keras variables, in the order of the state.
        uneven: the form of the step for a batch that does not fill all replicas; otherwise None.
        own: specs of the state of a pure step or of the modules, in the dtypes of the step; None without either.
        weak_outputs: for each leaf of the outputs, whether its type is weak; () for a whole-batch step.
    """

    program: Program
    variables: tuple[Any, ...]
    uneven: UnevenStep | None
    own: Tree
    weak_outputs: tuple[bool, ...] = ()


@dataclasses.dataclass(frozen=True)
class Call:
    """One replica's call of a step function, as a function of the passed arrays.

    Attributes:
        fn: the step function of one replica.
        form: the form of its arguments.
        strategy: the strategy that runs it; `get_strategy` in the function returns it.
        is_pure: True if the function takes its state as its first argument, and returns (state, outputs).
        modules: the form of the NNX modules among its arguments, whose arrays are the state; None if there are none.
        shard: the replica's part of a batch that does not fill all replicas; otherwise None.
        verdicts: what the first trace shows of each loss, for the later ones (`loss_shares.py`).
        own: specs of the state of a pure step or of the modules, of which some have weak types; None without either.
    """

    fn: Callable
    form: ArgumentForm
    strategy: Any
    is_pure: bool
    modules: ModuleForm | None = None
    shard: ReplicaShard | None = None
    verdicts: dict[Any, bool] = dataclasses.field(default_factory=dict)
    own: Tree = None

    @property
    def name(self) -> str:
        """Name of the function, for errors and reports."""
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def __call__(self, own: Tree, arrays: list[Any]) -> tuple[Tree, Tree]:
        """Run the function as one replica. Return the new state of a pure step, or None, and the outputs."""
        arrays, own = self.form.typed(arrays), with_weak_types(own, self.own)
        args, kwargs = unwrap_static_leaves(self.form.rebuilt(arrays))
        with as_replica(self.strategy, self._replica(arrays)):
            if self.modules is not None:
                new, outputs = self.modules.call(self.fn, own, args, kwargs)
                return new, self._outputs(outputs)
            if not self.is_pure:
                return None, self._outputs(self.fn(*args, **kwargs))
            # A copy for each replica, which the function may change in place.
            state = ReplicaState(own)
            result = wrap_static_leaves(self.fn(unwrap_static_leaves(state.local), *args, **kwargs))
            if not isinstance(result, tuple) or len(result) != 2:
                raise ReplicaError(
                    f"{self.name} takes a state and must return a pair, (state, metrics), not {result!r}. Without "
                    "metrics, return (state, None)"
                )
            _check_dtype_kinds(self.name, own, result[0])
            return state.merged(result[0]), self._outputs(result[1])

    def _outputs(self, outputs: Any) -> Any:
        """Return the outputs of the function, with Keras variables replaced by their values."""
        return jax.tree.map(lambda leaf: _output(self.name, leaf), wrap_static_leaves(outputs, self.form.objects))

    def _replica(self, arrays: list[Any]) -> Replica:
        shared = tuple(array for array, layout in zip(arrays, self.form.layouts(), strict=True) if layout is REPLICATED)
        return Replica(self.strategy.num_replicas_in_sync, shard=self.shard, shared=shared, verdicts=self.verdicts)


def step_of(call: Call, check: TraceCheck | None = None) -> ReplicaStep:
    """Return the step of a call; on a strategy with a layout a whole-batch step.

    Args:
        call: the function and the form of its arguments.
        check: takes the function's trace, and raises if it reads a forbidden array; None allows all traces.

    Raises:
        SettingError: the strategy has a layout, and the step has no state.
        ReplicaError: a variable without aggregation would differ between the replicas. Or the function returns a value
            that is not an array, or reads an NNX module that is not an argument.
        StrategyError: a variable was made in the scope of a strategy on another running system.
    """
    if call.strategy.layout is not None:
        is_pure = call.is_pure and call.modules is None
        state = call.own if is_pure else None
        program, own = whole_program(call.name, call.fn, call.form, state, call.strategy.layout)
        return ReplicaStep(call.strategy.place(program), (), None, own)
    form, replicas = call.form, call.strategy.num_replicas_in_sync
    # 1. Trace abstractly to find the variables, and the merge function of each.
    call, variables, merges, has_summed_products, weak = _discover(call, check)
    _check_system(variables, call.strategy)

    # 2. Define the pure step: values of the variables in, merged new values out.
    def step_with(call: Call) -> Callable[[tuple[list[Any], Tree], list[Any]], tuple[tuple[list[Any], Tree], Tree]]:
        def step(state: tuple[list[Any], Tree], arrays: list[Any]) -> tuple[tuple[list[Any], Tree], Tree]:
            scope = ReplicaScope(list(zip(variables, state[0], strict=True)))
            with scope:
                new_own, outputs = call(state[1], arrays)
            _check_made_none(call.name, scope, variables)
            written = [(m, old, scope.held(v)) for m, old, v in zip(merges, state[0], variables, strict=True)]
            return ([new if m is None else m(old, new, call.shard) for m, old, new in written], new_own), outputs

        return step

    own_names = call.modules.names if call.modules else leaf_names(call.own, "state")
    # 3. Make the Program. A batch that does not fill the replicas needs a step for each number of rows.
    uneven = None if form.counts is None else _uneven(call, form.counts, step_with)
    program = Program(
        name=call.name,
        step=step_with(call) if uneven is None else uneven,
        state=([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables], spec_of(call.own)),
        batch=form.specs(),
        layout=form.layouts(),
        replicas=replicas,
        state_names=(*(v.path for v in variables), *own_names),
        sums_products=has_summed_products,
    )
    return ReplicaStep(program, tuple(variables), uneven, call.own, weak)


def _uneven(call: Call, counts: tuple[int, ...], step_with: Callable[[Call], Callable]) -> UnevenStep:
    """Return the step of a batch that does not fill all replicas."""

    def step_for(rows: int, exchange: Callable[[Any], list[Any]]) -> Callable:
        form, shard = call.form.with_rows(rows), ReplicaShard(rows, counts, exchange)
        return step_with(dataclasses.replace(call, form=form, shard=shard))

    return UnevenStep(call.name, counts, step_for, call.form.has_rows())


def _discover(
    call: Call, check: TraceCheck | None
) -> tuple[Call, list[Any], list[Merge | None], bool, tuple[bool, ...]]:
    """Trace the step abstractly.

    Returns:
        The call, in which numbers of the state have the dtypes of their new values. The variables, and the merge
        function of each one's new values. Whether products are summed over the replicas. Whether each output has a weak
        type.
    """
    counts = call.form.counts
    if counts is None:
        found = [_discover_once(call, check)]
    else:
        # Python code on the number of rows may use other variables for each number.
        found = agreed(
            call.name, counts, lambda agreement, rows: _discover_once(_with_rows(call, agreement, rows), check)
        )
    results = found[0].results
    promoted = promoted_state(call.own, results[0])
    if jax.tree.leaves(promoted) != jax.tree.leaves(call.own):
        return _discover(dataclasses.replace(call, own=promoted), check)
    seen = {id(variable): variable for each in found for variable in each.seen}
    overwritten = {i: all(i in each.overwritten for each in found if i in each.ids) for i in seen}
    written, differs = set().union(*(e.written for e in found)), set().union(*(e.differs for e in found))
    merges = [merge_of(v, overwritten[i], i in differs) if i in written else None for i, v in seen.items()]
    has_summed_products = any(each.sums_products for each in found)
    weak = tuple([_jax.is_weak(spec) for spec in jax.tree.leaves(results[1])])
    return call, list(seen.values()), merges, has_summed_products, weak


@dataclasses.dataclass(frozen=True)
class _Discovery:
    """The variables and results that an abstract trace of a step shows.

    Attributes:
        seen: the variables that it uses.
        overwritten: ids of those that it writes without reading.
        written: ids of those that it writes.
        differs: ids of those whose new values differ between the replicas.
        results: specs of the new state and of the outputs, with weak types.
        sums_products: whether it sums products over the replicas.
    """

    seen: list[Any]
    overwritten: set[int]
    written: set[int]
    differs: set[int]
    results: tuple[Tree, Tree]
    sums_products: bool

    @property
    def ids(self) -> set[int]:
        """Ids of the variables."""
        return set(map(id, self.seen))


def _with_rows(call: Call, agreement: Agreement, rows: int) -> Call:
    """Return the call on replicas with a number of rows, for an abstract trace."""
    counts = call.form.counts
    assert counts is not None
    shard = ReplicaShard(rows, counts, exchange_of(agreement, counts, rows), is_recorded=False)
    return dataclasses.replace(call, form=call.form.with_rows(rows), shard=shard)


def _discover_once(call: Call, check: TraceCheck | None) -> _Discovery:
    """Trace the step abstractly for one number of rows."""
    scope = ReplicaScope([], makes_variables=True)
    differs, written, results = set[int](), set[int](), list[tuple[Tree, Tree]]()

    def run_replica(own: Tree, arrays: list[Any]) -> Any:
        scope.begins_here()
        new_own, outputs = call(own, arrays)
        results.append(weak_spec_of((new_own, outputs)))
        written.update(id(variable) for variable, _ in scope.written())
        differs.update(id(variable) for variable, value in scope.written() if _jax.is_mapped(value))
        return outputs

    with scope:
        sums_products = _trace_replicas(call, run_replica, check)
    return _Discovery(scope.seen, scope.overwritten, written, differs, results[0], sums_products)


def _trace_replicas(call: Call, run_replica: Callable, check: TraceCheck | None) -> bool:
    """Trace one replica's function abstractly over all replicas. Return whether it sums products over them."""
    # JAX's errors name the file and the line of this function: those of the user.
    if (written := _written_function(call.fn)) is not None:
        run_replica.__wrapped__ = written  # pyright: ignore[reportFunctionMemberAccess]
    axes = [layout.axis for layout in call.form.layouts()]
    replicas = call.strategy.num_replicas_in_sync
    run_all = jax.vmap(run_replica, in_axes=(None, axes), axis_name=REPLICA_AXIS, axis_size=replicas)
    trace = jax.make_jaxpr(run_all)(spec_of(call.own), call.form.specs())
    if check is not None:
        check(trace)
    # A sum that becomes a part of a product needs no array for each replica.
    rewritten = with_summed_products(trace)
    if call.strategy.system.topology.is_virtual:
        warn_of_large_sums(call.name, rewritten, replicas)
    return rewritten is not trace


def _written_function(fn: Any) -> Callable | None:
    """Return the function that a step's user wrote, below partials, wrappers and objects; None if there is none."""
    with contextlib.suppress(ValueError):  # a cycle of wrappers
        while isinstance(fn := inspect.unwrap(fn), functools.partial):
            fn = fn.func
        is_written = isinstance(fn, types.FunctionType | types.MethodType)
        return fn if is_written else inspect.getattr_static(type(fn), "__call__", None)
    return None


def _output(name: str, leaf: Any) -> Any:
    if isinstance(leaf, keras.Variable):
        return leaf.value
    if isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex):
        return leaf
    raise ReplicaError(
        f"{name} returns {leaf!r}, and a function that strategy.run runs must return arrays, numbers or None, or "
        "lists, tuples and dictionaries of them. Return anything else from outside of it"
    )


def _check_dtype_kinds(name: str, own: Tree, new: Tree) -> None:
    """Reject a new state with a wider kind of dtype than the old one: casting it back would lose information."""
    before, after = jax.tree.leaves(own), jax.tree.leaves(new)
    if jax.tree.structure(own) != jax.tree.structure(new):
        return
    if any(_kind_rank(jnp.result_type(b)) > _kind_rank(a.dtype) for a, b in zip(before, after, strict=True)):
        check_result(name, spec_of(own), (jax.eval_shape(lambda: new), None))


def _kind_rank(dtype: Any) -> int:
    """Return the rank of a dtype's kind: 0 for booleans, 1 for integers, 2 for floats, 3 for complex numbers."""
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
