"""A step function of one replica, as a `Program`.

Idea: the function is run once abstractly, to see which Keras variables it reads and writes and which of its writes differ
between the replicas; then it is a pure function of those variables and its arguments.

Rule: after a step every replica must hold the same state. Metrics add up what the replicas counted, BatchNorm statistics
take the mean, a variable keeps the aggregation it was made with; any other variable that would differ is an error, where
TensorFlow silently showed replica 0's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from anytpu.errors import ReplicaError
from anytpu.program.program import REPLICA_AXIS, REPLICATED, ROWS, Program, Tree, spec_of
from anytpu.strategy.per_replica import PerReplica, is_per_replica
from anytpu.strategy.replicas import ReplicaScope, inside_replica, is_mapped

_MEAN_NAMES = ("moving_mean", "moving_variance")
_ARRAYS = (int, float, complex)


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments of one call, parted into what travels and what is part of the code.

    Attributes:
        tree: the structure of `(args, kwargs)`, a `PerReplica` being a leaf.
        fixed: per leaf, the value itself when it is not an array (a bool, a string, a model), else None.
        arrays: the leaves that travel: arrays, Python numbers and `PerReplica`.
    """

    tree: Any
    fixed: tuple[Any, ...]
    arrays: tuple[Any, ...]

    def rebuilt(self, arrays: list[Any]) -> tuple[tuple, dict]:
        """Return `(args, kwargs)` with the arrays put back."""
        rest = iter(arrays)
        leaves = [next(rest) if one is _TRAVELS else one for one in self.fixed]
        return jax.tree.unflatten(self.tree, leaves)

    def key(self) -> tuple:
        """Return what a compiled step depends on: structure, fixed values, shapes and dtypes of the arrays."""
        specs = jax.tree.leaves(self.specs())
        shapes = tuple((spec.shape, str(spec.dtype)) for spec in specs)
        return self.tree, tuple(_key(one) for one in self.fixed), shapes, self.layouts()

    def layouts(self) -> tuple:
        """Return the layout of each array that travels."""
        return tuple(ROWS if is_per_replica(one) else REPLICATED for one in self.arrays)

    def specs(self) -> list[Any]:
        """Return the spec of each array that travels; a `PerReplica` has the replicas in front."""
        return [one.spec() if isinstance(one, PerReplica) else spec_of(one) for one in self.arrays]


class _Travels:
    """Marks a leaf that travels."""


_TRAVELS = _Travels()


def call_of(args: tuple, kwargs: dict) -> Call:
    """Part the arguments of a call."""
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)), is_leaf=is_per_replica)
    fixed = tuple(_TRAVELS if _travels(leaf) else leaf for leaf in leaves)
    return Call(tree, fixed, tuple(leaf for leaf in leaves if _travels(leaf)))


def step_program(fn: Callable, call: Call, replicas: int) -> tuple[Program, list[Any]]:
    """Return the Program of a step function and the Keras variables that are its state, in order.

    Raises:
        ReplicaError: a variable that has no aggregation would differ between the replicas.
    """
    variables, merging = _discover(fn, call, replicas)
    merges = [_merge_of(variable) if id(variable) in merging else None for variable in variables]

    def step(state: list[Any], arrays: list[Any]) -> tuple[list[Any], Tree]:
        scope = ReplicaScope(list(zip(variables, state, strict=True)))
        args, kwargs = call.rebuilt(arrays)
        with scope, inside_replica(replicas):
            outputs = fn(*args, **kwargs)
        written = [scope.held(variable) for variable in variables]
        return [new if m is None else m(old, new) for m, old, new in zip(merges, state, written, strict=True)], outputs

    program = Program(
        name=getattr(fn, "__name__", type(fn).__name__),
        step=step,
        state=[jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables],
        batch=call.specs(),
        layout=list(call.layouts()),
        replicas=replicas,
        state_names=tuple(v.path for v in variables),
    )
    return program, variables


def _discover(fn: Callable, call: Call, replicas: int) -> tuple[list[Any], set[int]]:
    """Run the step abstractly. Return the variables it touches, and the ids of those whose new values must be merged.

    Those are the ones that may differ between the replicas, and the ones that sum: eight replicas that count 4 rows each
    write the same number, and it is 32 rows all the same.
    """
    scope = ReplicaScope([])
    merging: set[int] = set()

    def one(arrays: list[Any]) -> Any:
        args, kwargs = call.rebuilt(arrays)
        with inside_replica(replicas):
            outputs = fn(*args, **kwargs)
        merging.update(id(v) for v, value in scope.written() if is_mapped(value) or v.aggregation == "sum")
        return outputs

    axes = [layout.axis for layout in call.layouts()]
    over = jax.vmap(one, in_axes=(axes,), axis_name=REPLICA_AXIS, axis_size=replicas)
    with scope:
        jax.eval_shape(over, call.specs())
    return scope.seen, merging


def _merge_of(variable: Any) -> Callable[[Any, Any], Any]:
    """Return how the replicas' values of one variable become one."""
    if variable.aggregation == "sum":
        return lambda old, new: old + jax.lax.psum(new - old, REPLICA_AXIS)
    if variable.aggregation == "mean" or variable.name in _MEAN_NAMES:
        return lambda old, new: jax.lax.pmean(new, REPLICA_AXIS)
    if variable.aggregation == "only_first_replica":
        return lambda old, new: jax.lax.psum(
            jnp.where(jax.lax.axis_index(REPLICA_AXIS) == 0, new, jnp.zeros_like(new)), REPLICA_AXIS
        )
    raise ReplicaError(
        f"you must specify an aggregation method to update the variable {variable.path!r} in a replica: its new value "
        "differs between the replicas, and after a step every replica must hold the same. Make it with "
        'aggregation="sum", "mean" or "only_first_replica", for example '
        'keras.Variable(0.0, aggregation="sum"), or write a value that is the same on all of them'
    )


def _travels(leaf: Any) -> bool:
    if isinstance(leaf, bool):
        return False
    return is_per_replica(leaf) or isinstance(leaf, _ARRAYS) or hasattr(leaf, "__array__") or hasattr(leaf, "aval")


def _key(one: Any) -> Any:
    return one if isinstance(one, bool | str | bytes | type(None)) else id(one)
