"""Modules of Flax NNX and of Equinox in the arguments of a step.

Idea: an NNX module, optimizer or metric is changed in place. `run` takes its arrays out, passes them through the step
as state, and writes the new ones back. An Equinox module is a pytree whose other leaves (functions, numbers) are part
of the step's code.

Rule: neither framework is imported here: where nobody has imported it, there are no modules of it.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from anytpu.errors import ReplicaError
from anytpu.program.program import Tree
from anytpu.strategy.aggregation import mean_over_rows
from anytpu.strategy.arguments import Fixed
from anytpu.strategy.identity import Parts, is_weakly_referable
from anytpu.strategy.per_replica import PerReplica, is_per_replica
from anytpu.strategy.reached import ReachedModules
from anytpu.strategy.replicas import current_replica


class _Borrowed:
    """A part of the code in what a step returns that came in among its arguments, which hold it.

    A kept step holds the structure of its outputs, and must not hold what its arguments were made of.
    """

    def __init__(self, value: Any) -> None:
        self._key = id(value)
        self._reference = weakref.ref(value)

    @property
    def value(self) -> Any:
        return self._reference()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Borrowed) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


for _kind_of_code in (Fixed, _Borrowed):
    jax.tree_util.register_pytree_node(_kind_of_code, lambda fixed: ((), fixed), lambda fixed, _: fixed)


def closed(tree: Tree, given: Iterable[Any] = ()) -> Tree:
    """Return a tree with each leaf of an Equinox module that is no array as part of the structure.

    Args:
        tree: the arguments of a step, or what it returns.
        given: the objects among the arguments that are part of the code: they are not held.
    """
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return tree
    borrowed = {id(one) for one in given if is_weakly_referable(one)}

    def leaf(one: Any) -> Any:
        if isinstance(one, jax.Array | np.ndarray | PerReplica):
            return one
        return _Borrowed(one) if id(one) in borrowed else Fixed(one)

    def node(one: Any) -> Any:
        return jax.tree.map(leaf, one, is_leaf=is_per_replica) if isinstance(one, equinox.Module) else one

    return jax.tree.map(node, tree, is_leaf=lambda one: isinstance(one, equinox.Module | PerReplica))


def opened(tree: Tree) -> Tree:
    """Return a tree that `closed` returned with its leaves as they were."""
    if "equinox" not in sys.modules:
        return tree
    return jax.tree.map(
        lambda one: one.value if isinstance(one, Fixed | _Borrowed) else one,
        tree,
        is_leaf=lambda one: isinstance(one, Fixed | _Borrowed | PerReplica),
    )


@dataclasses.dataclass(frozen=True)
class ModuleForm:
    """What the NNX modules of a run are, but for the values that travel.

    Attributes:
        definition: the `nnx.GraphDef` of the list of them.
        structure: of their state.
        kinds: how the replicas' new values of each array become one: "same", "mean", "sum", or "key" of random numbers.
        names: of each array.
        key: all of it that equal forms have in common. It does not hold the objects of `objects`.
        objects: attributes of the modules that are no arrays and count by identity, such as a function.
    """

    definition: Any
    structure: Any
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    key: tuple = ()
    objects: tuple[Any, ...] = ()

    def call(self, fn: Callable, values: list[Any], args: tuple, kwargs: dict) -> tuple[list[Any], Any]:
        """Run a function of one replica on the modules. Return the new values of their arrays, and what it returns."""
        nnx = sys.modules["flax.nnx"]
        local = [_local(kind, value) for kind, value in zip(self.kinds, values, strict=True)]
        modules = nnx.merge(self.definition, self.structure.unflatten(local))
        _refuse_synchronised(nnx, modules)
        args, kwargs = jax.tree.map(
            lambda one: modules[one.index] if isinstance(one, _Slot) else one, (args, kwargs), is_leaf=is_per_replica
        )
        outputs = fn(*args, **kwargs)
        definition, state = nnx.split(modules)
        new, structure = jax.tree.flatten(state)
        if definition != self.definition or structure != self.structure:
            raise ReplicaError(
                f"{getattr(fn, '__name__', fn)} changes the structure of an NNX module that strategy.run was given: it "
                "adds, removes or replaces a part of it, or changes an attribute that is no array. Do that outside of "
                "the step, for example model.eval() before strategy.run"
            )
        merged = zip(self.kinds, values, local, new, strict=True)
        return [_merged(kind, old, mine, leaf) for kind, old, mine, leaf in merged], outputs


@dataclasses.dataclass(frozen=True)
class Modules:
    """The NNX modules among the arguments of a run.

    Attributes:
        objects: the modules, in order.
        form: all about them but the values.
        values: their arrays, keys of random numbers as integers.
        args: the positional arguments, each module a slot.
        kwargs: the keyword arguments, likewise.
    """

    objects: list[Any]
    form: ModuleForm
    values: list[Any]
    args: tuple
    kwargs: dict

    def write_back(self, values: list[Any]) -> None:
        """Let the modules hold new values."""
        state = self.form.structure.unflatten(
            [_as_key(kind, value) for kind, value in zip(self.form.kinds, values, strict=True)]
        )
        sys.modules["flax.nnx"].update(self.objects, state)


def taken_out(args: Any, kwargs: Any) -> Modules | None:
    """Return the NNX modules among the arguments of a run; None where there are none."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not isinstance(args, tuple | list) or not isinstance(kwargs, dict | None):
        return None
    kinds = (nnx.Pytree, nnx.Variable)
    leaves, tree = jax.tree.flatten(
        (tuple(args), kwargs or {}), is_leaf=lambda one: isinstance(one, (*kinds, PerReplica))
    )
    objects = [leaf for leaf in leaves if isinstance(leaf, kinds)]
    if not objects:
        return None
    index = iter(range(len(objects)))
    left = tree.unflatten([_slot(next(index)) if isinstance(leaf, kinds) else leaf for leaf in leaves])
    definition, state = nnx.split(objects)
    values, structure = jax.tree.flatten(state)
    described = _described(nnx, objects, state)
    kinds_of, names = tuple(kind for kind, _ in described), tuple(name for _, name in described)
    key, parts = _identified(definition)
    form = ModuleForm(definition, structure, kinds_of, names, (*key, structure, kinds_of, names), tuple(parts))
    return Modules(objects, form, [_as_data(value) for value in values], *left)


def _identified(definition: Any) -> tuple[tuple, list[Any]]:
    """Return what equal definitions of modules have in common, and the objects in it that count by identity."""
    parts, rest = Parts(), []
    for name, attribute in definition.attributes:
        if type(attribute).__name__ != "Static":
            rest.append((name, attribute))
            continue
        rest.append(name)
        value = attribute.value
        # A record, such as an optimizer of optax, counts by what it is made of.
        value = tuple(value) if isinstance(value, tuple) else value
        if _is_by_value(value):
            parts.key.append(value)
        else:
            parts.add(value, _identified)
    return (tuple(definition.nodes), tuple(rest), tuple(parts.key)), parts.held


def _is_by_value(value: Any) -> bool:
    """Say whether an attribute has an equality of its own, as a configuration has, and holds nothing but its fields."""
    return type(value).__eq__ is not object.__eq__ and not isinstance(value, (tuple, list, dict, types.MethodType))


def refuse_captured(name: str, held: list[Any]) -> None:
    """Refuse a step that reaches an NNX module by name: it would compute with the values of its first run for ever.

    Args:
        name: the step function.
        held: the objects that it names, closes over, or has as defaults.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    for one in held:
        if isinstance(one, nnx.Pytree | nnx.Variable):
            raise ReplicaError(_captured(name, f"the NNX object {type(one).__name__}"))


class ReplicaState:
    """One replica's copy of a state, in which NNX modules have random numbers and sums of the replica's own.

    Args:
        state: the state that all replicas share.

    Attributes:
        local: the copy, which the step may change in place.
    """

    def __init__(self, state: Tree) -> None:
        self._leaves, self._structure = jax.tree.flatten(state)
        nnx = sys.modules.get("flax.nnx")
        self._kinds = ["same"] * len(self._leaves) if nnx is None else _kinds_of(nnx, state)
        self._local = [_local(kind, leaf) for kind, leaf in zip(self._kinds, self._leaves, strict=True)]
        self.local = self._structure.unflatten(self._local)
        if nnx is not None:
            _refuse_synchronised(nnx, self.local)

    def merged(self, new: Tree) -> Tree:
        """Return the state on all replicas, from what one replica has made of its copy."""
        leaves, structure = jax.tree.flatten(new)
        if structure != self._structure:
            return new  # Refused, with both structures, where the step is lowered.
        pairs = zip(self._kinds, self._leaves, self._local, leaves, strict=True)
        return structure.unflatten([_merged(kind, old, mine, leaf) for kind, old, mine, leaf in pairs])


def check_of_trace(name: str, held: list[Any]) -> Callable[[ClosedJaxpr], None] | None:
    """Return what refuses the trace of a step that reads an NNX module through an object, as `refuse_captured` does.

    Args:
        name: the step function.
        held: the objects that it names, closes over, or has as defaults.

    Returns:
        A function of the trace; None where these objects hold no NNX module.
    """
    nnx = sys.modules.get("flax.nnx")
    reached = None if nnx is None else ReachedModules(nnx, held)
    return (lambda trace: refuse_captured(name, reached.read_by(trace))) if reached else None


def refuse_shared(state: Tree) -> None:
    """Refuse a state in which two NNX modules share a variable: as a tree it would become two variables."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    leaves = jax.tree.leaves(state, is_leaf=lambda one: isinstance(one, nnx.Variable))
    found: set[int] = set()
    for variable in leaves:
        if isinstance(variable, nnx.Variable) and id(variable) in found:
            raise ReplicaError(
                f"the state holds an NNX variable of shape {variable.shape} twice, which run_steps would make two "
                "variables of. Hold each module once, for example with nnx.Optimizer(model, tx, wrt=nnx.Param) beside "
                "the model, or type strategy.run(step, args=(model, optimizer, batch))"
            )
        found.add(id(variable))


def translated(name: str, error: Exception) -> Exception:
    """Return flax's error for a module that is changed where it may not be as ours; any other as it is."""
    if type(error).__name__ != "TraceContextError" or not type(error).__module__.startswith("flax"):
        return error
    return ReplicaError(_captured(name, "an NNX object"))


def _refuse_synchronised(nnx: Any, modules: Tree) -> None:
    """Raise where a batch does not fill all replicas, and a BatchNorm takes the mean of the replicas' statistics.

    `nnx.BatchNorm` weighs each replica alike, whatever its rows: one without rows would count as zeros.
    """
    replica = current_replica()
    if replica is None or replica.shard is None:
        return
    for _, node in nnx.iter_graph(modules):
        if isinstance(node, nnx.BatchNorm) and node.axis_name is not None and not node.use_running_average:
            raise ReplicaError(
                f"an nnx.BatchNorm with axis_name={node.axis_name!r} was given a batch that does not fill all replicas,"
                " and takes the mean of the replicas' statistics, whatever their rows. Leave such a batch out, with "
                "batch(rows, drop_remainder=True), or leave axis_name out: each replica normalises its own rows then"
            )


def _captured(name: str, what: str) -> str:
    return (
        f"{name} uses {what} that is not among its arguments, so that strategy.run can neither pass its values nor "
        f"write new ones back. Pass it: strategy.run({name}, args=(model, optimizer, batch))"
    )


@dataclasses.dataclass(frozen=True)
class _Slot:
    """Stands for a module among the arguments."""

    index: int


@functools.cache
def _slot(index: int) -> _Slot:
    return _Slot(index)


def _described(nnx: Any, objects: list[Any], state: Any) -> list[tuple[str, str]]:
    """Return the kind and the name of each array of the state."""
    sums = {
        (*path, part)
        for path, node in nnx.iter_graph(objects)
        if isinstance(node, nnx.metrics.Average)
        for part in ("total", "count")
    }
    found = []
    for path, variable in nnx.to_flat_state(state):
        name = ".".join([type(objects[path[0]]).__name__, *map(str, path[1:])])
        for leaf in jax.tree.leaves(variable):
            found.append((_kind(nnx, variable, leaf, path in sums), name))
    return found


def _kinds_of(nnx: Any, state: Tree) -> list[str]:
    """Return the kind of each leaf of a tree; of one in no NNX module, "same"."""
    averages = [one for one in _leaves_of(state, nnx.metrics.Average) if isinstance(one, nnx.metrics.Average)]
    sums = {id(variable) for one in averages for variable in (one.total, one.count)}
    found = []
    for one in _leaves_of(state, nnx.Variable):
        if not isinstance(one, nnx.Variable):
            found.append("same")
            continue
        found += [_kind(nnx, one, leaf, id(one) in sums) for leaf in jax.tree.leaves(one)]
    return found


def _leaves_of(tree: Tree, kind: type) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda one: isinstance(one, kind))


def _kind(nnx: Any, variable: Any, leaf: Any, is_sum: bool) -> str:
    if _is_key(leaf):
        return f"key {jax.random.key_impl(leaf)}"
    if is_sum:
        return "sum"
    return "mean" if isinstance(variable, nnx.BatchStat) else "same"


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _as_key(kind: str, value: Any) -> Any:
    is_data = kind.startswith("key ") and not _is_key(value)
    return jax.random.wrap_key_data(value, impl=kind.split()[1]) if is_data else value


def _local(kind: str, value: Any) -> Any:
    """Return one replica's own value: random numbers of its own, and its own part of a sum."""
    replica = current_replica()
    assert replica is not None
    if replica.replicas == 1:
        return _as_key(kind, value)
    if kind.startswith("key "):
        return jax.random.fold_in(_as_key(kind, value), replica.index)
    return jnp.where(replica.index == 0, value, jnp.zeros_like(value)) if kind == "sum" else value


def _merged(kind: str, old: Any, local: Any, new: Any) -> Any:
    """Return the value on all replicas; one of kind "same" that differs is refused where the step is lowered."""
    replica = current_replica()
    assert replica is not None
    if kind.startswith("key "):
        if new is local:
            return old
        return new if _is_key(old) else _as_data(new)
    if replica.replicas == 1 or kind == "same":
        return new
    return replica.sum(new) if kind == "sum" else mean_over_rows(new, replica.shard)
