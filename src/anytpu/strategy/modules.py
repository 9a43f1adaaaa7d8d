"""Modules of Flax NNX and of Equinox in the arguments of a step.

Idea: an NNX module, optimizer or metric is mutable. `run` extracts its arrays, passes them through the step as state,
and writes the new ones back. An Equinox module is a pytree; its leaves that are not arrays (functions, numbers) are
static.

Rule: neither framework is imported here: if the program has not imported it, there are no modules of it.
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
from anytpu.strategy.arguments import StaticLeaf
from anytpu.strategy.assignments import mean_over_rows
from anytpu.strategy.identity import IdentityParts, is_weakly_referable
from anytpu.strategy.per_replica import PerReplica, is_key, is_per_replica
from anytpu.strategy.reached import find_reads
from anytpu.strategy.replicas import current_replica


class _WeakStaticLeaf:
    """A static leaf in the outputs of a step that is also a static leaf of its arguments.

    A cached step holds the structure of its outputs, and must not keep objects of its arguments alive.
    """

    def __init__(self, value: Any) -> None:
        self._key = id(value)
        self._reference = weakref.ref(value)

    @property
    def value(self) -> Any:
        return self._reference()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WeakStaticLeaf) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


for _static_kind in (StaticLeaf, _WeakStaticLeaf):
    jax.tree_util.register_pytree_node(_static_kind, lambda leaf: ((), leaf), lambda leaf, _: leaf)


def wrap_static_leaves(tree: Tree, static_arguments: Iterable[Any] = ()) -> Tree:
    """Return a tree in which the non-array leaves of Equinox modules are part of the structure.

    Args:
        tree: the arguments of a step, or its outputs.
        static_arguments: the static objects among the arguments; the tree references them only weakly.
    """
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return tree
    weak_ids = {id(value) for value in static_arguments if is_weakly_referable(value)}

    def wrap_leaf(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array | np.ndarray | PerReplica):
            return leaf
        return _WeakStaticLeaf(leaf) if id(leaf) in weak_ids else StaticLeaf(leaf)

    def wrap_node(node: Any) -> Any:
        return jax.tree.map(wrap_leaf, node, is_leaf=is_per_replica) if isinstance(node, equinox.Module) else node

    return jax.tree.map(wrap_node, tree, is_leaf=lambda node: isinstance(node, equinox.Module | PerReplica))


def unwrap_static_leaves(tree: Tree) -> Tree:
    """Undo `wrap_static_leaves`."""
    if "equinox" not in sys.modules:
        return tree
    return jax.tree.map(
        lambda leaf: leaf.value if isinstance(leaf, StaticLeaf | _WeakStaticLeaf) else leaf,
        tree,
        is_leaf=lambda node: isinstance(node, StaticLeaf | _WeakStaticLeaf | PerReplica),
    )


@dataclasses.dataclass(frozen=True)
class ModuleForm:
    """The form of the NNX modules of a run: everything except the values of their arrays.

    Attributes:
        definition: the `nnx.GraphDef` of the list of modules.
        structure: tree structure of their state.
        kinds: for each array, the way to merge the replicas' new values: "same", "mean", "sum", or "key IMPL" for a
            random key.
        names: name of each array.
        key: cache key, the same for equal forms. It does not hold the objects of `objects`.
        objects: attributes of the modules that are not arrays and are compared by identity, such as a function.
    """

    definition: Any
    structure: Any
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    key: tuple = ()
    objects: tuple[Any, ...] = ()

    def call(self, fn: Callable, values: list[Any], args: tuple, kwargs: dict) -> tuple[list[Any], Any]:
        """Run a function of one replica on the modules. Return the new values of their arrays, and its outputs."""
        # 1. Make the modules of this replica's values.
        nnx = sys.modules["flax.nnx"]
        local = [_replica_value(kind, value) for kind, value in zip(self.kinds, values, strict=True)]
        modules = nnx.merge(self.definition, self.structure.unflatten(local))
        _refuse_synchronised(nnx, modules)
        # 2. Put them in place of the slots, and run the function on them.
        args, kwargs = jax.tree.map(
            lambda leaf: modules[leaf.index] if isinstance(leaf, _Slot) else leaf,
            (args, kwargs),
            is_leaf=is_per_replica,
        )
        outputs = fn(*args, **kwargs)
        # 3. Split them again. The compiled step returns values only, so their structure must be the old one.
        definition, state = nnx.split(modules)
        new, structure = jax.tree.flatten(state)
        if definition != self.definition or structure != self.structure:
            raise ReplicaError(
                f"{getattr(fn, '__name__', fn)} changes the structure of an NNX module that strategy.run was given: it "
                "adds, removes or replaces a part of it, or changes a non-array attribute. Do that outside of "
                "the step, for example model.eval() before strategy.run"
            )
        # 4. Merge the new values of the replicas.
        arrays = zip(self.kinds, values, local, new, strict=True)
        return [_merge_replicas(*array) for array in arrays], outputs


@dataclasses.dataclass(frozen=True)
class ExtractedModules:
    """The NNX modules among the arguments of a run.

    Attributes:
        objects: the modules, in order.
        form: everything about them except the array values.
        values: their arrays, with random keys as integer arrays.
        args: the positional arguments, with a slot in place of each module.
        kwargs: the keyword arguments, likewise.
    """

    objects: list[Any]
    form: ModuleForm
    values: list[Any]
    args: tuple
    kwargs: dict

    def write_back(self, values: list[Any]) -> None:
        """Store new values in the modules."""
        state = self.form.structure.unflatten(
            [_wrap_key(kind, value) for kind, value in zip(self.form.kinds, values, strict=True)]
        )
        sys.modules["flax.nnx"].update(self.objects, state)


def extract_modules(args: Any, kwargs: Any) -> ExtractedModules | None:
    """Return the NNX modules among the arguments of a run; None if there are none."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not isinstance(args, tuple | list) or not isinstance(kwargs, dict | None):
        return None
    kinds = (nnx.Pytree, nnx.Variable)
    # 1. Replace each module by a slot with its index.
    leaves, tree = jax.tree.flatten(
        (tuple(args), kwargs or {}), is_leaf=lambda node: isinstance(node, (*kinds, PerReplica))
    )
    objects = [leaf for leaf in leaves if isinstance(leaf, kinds)]
    if not objects:
        return None
    index = iter(range(len(objects)))
    slotted = tree.unflatten([_slot(next(index)) if isinstance(leaf, kinds) else leaf for leaf in leaves])
    # 2. Split all modules at once, so that a variable that two of them share stays one.
    definition, state = nnx.split(objects)
    values, structure = jax.tree.flatten(state)
    kinds_and_names = _kinds_and_names(nnx, objects, state)
    array_kinds, names = tuple(kind for kind, _ in kinds_and_names), tuple(name for _, name in kinds_and_names)
    # 3. The cache key is that of the structure, without objects that are compared by identity.
    key, parts = _definition_key(definition)
    form = ModuleForm(definition, structure, array_kinds, names, (*key, structure, array_kinds, names), tuple(parts))
    return ExtractedModules(objects, form, [_unwrap_key(value) for value in values], *slotted)


def _definition_key(definition: Any) -> tuple[tuple, list[Any]]:
    """Return the cache key of a definition of modules, and its objects that are compared by identity."""
    parts, rest = IdentityParts(), []
    for name, attribute in definition.attributes:
        if type(attribute).__name__ != "Static":
            rest.append((name, attribute))
            continue
        rest.append(name)
        value = attribute.value
        # A named tuple, such as an optax optimizer, is compared by its fields.
        value = tuple(value) if isinstance(value, tuple) else value
        if _is_by_value(value):
            parts.key.append(value)
        else:
            parts.add(value, {}, "")
    return (tuple(definition.nodes), tuple(rest), tuple(parts.key)), [*parts.held, *parts.reached]


def _is_by_value(value: Any) -> bool:
    """Return whether an attribute is compared with its class's `__eq__`, as a configuration dataclass is."""
    return type(value).__eq__ is not object.__eq__ and not isinstance(value, (tuple, list, dict, types.MethodType))


def refuse_captured(name: str, held: list[Any]) -> None:
    """Reject a step that uses an NNX module by name: it would always compute with the values of its first run.

    Args:
        name: name of the step function.
        held: the objects that it names, closes over, or has as defaults.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    for value in held:
        if isinstance(value, nnx.Pytree | nnx.Variable):
            raise ReplicaError(_capture_message(name, f"the NNX object {type(value).__name__}"))


class ReplicaState:
    """One replica's copy of a state, in which NNX modules have the replica's own random keys and sums.

    Args:
        state: the state that all replicas share.

    Attributes:
        local: the copy, which the step may change in place.
    """

    def __init__(self, state: Tree) -> None:
        self._leaves, self._structure = jax.tree.flatten(state)
        nnx = sys.modules.get("flax.nnx")
        self._kinds = ["same"] * len(self._leaves) if nnx is None else _kinds_of(nnx, state)
        self._local = [_replica_value(kind, leaf) for kind, leaf in zip(self._kinds, self._leaves, strict=True)]
        self.local = self._structure.unflatten(self._local)
        if nnx is not None:
            _refuse_synchronised(nnx, self.local)

    def merged(self, new: Tree) -> Tree:
        """Return the state on all replicas, from this replica's new copy."""
        leaves, structure = jax.tree.flatten(new)
        if structure != self._structure:
            return new  # Lowering rejects it with an error that shows both structures.
        arrays = zip(self._kinds, self._leaves, self._local, leaves, strict=True)
        return structure.unflatten([_merge_replicas(*array) for array in arrays])


def trace_check(name: str, held: list[Any]) -> Callable[[ClosedJaxpr], None] | None:
    """Return a check that rejects the trace of a step that reads an NNX module through an object.

    Args:
        name: name of the step function.
        held: the objects that it names, closes over, or has as defaults.

    Returns:
        A function of the trace, which raises as `refuse_captured` does; None if these objects hold no NNX module.
    """
    nnx = sys.modules.get("flax.nnx")
    reads = None if nnx is None else find_reads(nnx, held)
    return (lambda trace: refuse_captured(name, reads(trace))) if reads else None


def refuse_shared(state: Tree) -> None:
    """Reject a state in which two NNX modules share a variable: as a tree it would become two variables."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, nnx.Variable))
    seen: set[int] = set()
    for variable in leaves:
        if isinstance(variable, nnx.Variable) and id(variable) in seen:
            raise ReplicaError(
                f"the state holds an NNX variable of shape {variable.shape} twice, which run_steps would make two "
                "variables of. Hold each module once, for example with nnx.Optimizer(model, tx, wrt=nnx.Param) beside "
                "the model, or type strategy.run(step, args=(model, optimizer, batch))"
            )
        seen.add(id(variable))


def translate_flax_error(name: str, error: Exception) -> Exception:
    """Return a `ReplicaError` for Flax's `TraceContextError`, and any other error unchanged."""
    if type(error).__name__ != "TraceContextError" or not type(error).__module__.startswith("flax"):
        return error
    return ReplicaError(_capture_message(name, "an NNX object"))


def _refuse_synchronised(nnx: Any, modules: Tree) -> None:
    """Raise if the batch does not fill all replicas, and a BatchNorm averages the replicas' statistics.

    `nnx.BatchNorm` gives each replica the same weight, so a replica without rows would count as zeros.
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


def _capture_message(name: str, what: str) -> str:
    return (
        f"{name} uses {what} that is not among its arguments, so that strategy.run can neither pass its values nor "
        f"write new ones back. Pass it: strategy.run({name}, args=(model, optimizer, batch))"
    )


@dataclasses.dataclass(frozen=True)
class _Slot:
    """Placeholder for a module among the arguments.

    Attributes:
        index: index of the module in `ExtractedModules.objects`.
    """

    index: int


@functools.cache
def _slot(index: int) -> _Slot:
    return _Slot(index)


def _kinds_and_names(nnx: Any, objects: list[Any], state: Any) -> list[tuple[str, str]]:
    """Return the kind and the name of each array of the state."""
    sums = {
        (*path, part)
        for path, node in nnx.iter_graph(objects)
        if isinstance(node, nnx.metrics.Average)
        for part in ("total", "count")
    }
    kinds_and_names = []
    for path, variable in nnx.to_flat_state(state):
        name = ".".join([type(objects[path[0]]).__name__, *map(str, path[1:])])
        for leaf in jax.tree.leaves(variable):
            kinds_and_names.append((_kind(nnx, variable, leaf, path in sums), name))
    return kinds_and_names


def _kinds_of(nnx: Any, state: Tree) -> list[str]:
    """Return the kind of each leaf of a tree; "same" for a leaf outside of NNX modules."""
    leaves = _leaves_of(state, nnx.metrics.Average)
    averages = [leaf for leaf in leaves if isinstance(leaf, nnx.metrics.Average)]
    sums = {id(variable) for average in averages for variable in (average.total, average.count)}
    kinds = []
    for node in _leaves_of(state, nnx.Variable):
        if not isinstance(node, nnx.Variable):
            kinds.append("same")
            continue
        kinds += [_kind(nnx, node, leaf, id(node) in sums) for leaf in jax.tree.leaves(node)]
    return kinds


def _leaves_of(tree: Tree, kind: type) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))


def _kind(nnx: Any, variable: Any, leaf: Any, is_sum: bool) -> str:
    if is_key(leaf):
        return f"key {jax.random.key_impl(leaf)}"
    if is_sum:
        return "sum"
    return "mean" if isinstance(variable, nnx.BatchStat) else "same"


def _unwrap_key(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _wrap_key(kind: str, value: Any) -> Any:
    is_data = kind.startswith("key ") and not is_key(value)
    return jax.random.wrap_key_data(value, impl=kind.split()[1]) if is_data else value


def _replica_value(kind: str, value: Any) -> Any:
    """Return this replica's value: its own random key, or its own term of a sum (the sum on replica 0, else zero)."""
    replica = current_replica()
    assert replica is not None
    if replica.replicas == 1:
        return _wrap_key(kind, value)
    if kind.startswith("key "):
        return jax.random.fold_in(_wrap_key(kind, value), replica.index)
    return jnp.where(replica.index == 0, value, jnp.zeros_like(value)) if kind == "sum" else value


def _merge_replicas(kind: str, old: Any, local: Any, new: Any) -> Any:
    """Return the value on all replicas; lowering rejects a value of kind "same" that differs between them.

    Args:
        kind: kind of the array, as in `ModuleForm.kinds`.
        old: the value before the step.
        local: this replica's value before the step.
        new: this replica's value after the step.
    """
    replica = current_replica()
    assert replica is not None
    if kind.startswith("key "):
        # The step did not replace the key: keep the shared one, and not that of this replica.
        if new is local:
            return old
        return new if is_key(old) else _unwrap_key(new)
    if replica.replicas == 1 or kind == "same":
        return new
    return replica.sum(new) if kind == "sum" else mean_over_rows(new, replica.shard)
