"""`Tracked`: the objects of a custom loop whose state a checkpoint holds.

Idea: an object is one of three kinds. A Keras object has variables: a model, an optimizer, a metric, a seed generator.
An iterator has `get_state` and `set_state`. A tree has arrays and numbers: a dict, a list, or an object of Flax NNX.
Entries of dicts and lists are replaced, and the variables of NNX objects are set.

Rule: a value that is restored traces to the same program as the saved one. So its Python type, its weak type, its
devices and the implementation of a random key are kept. An object of another kind is rejected by name, before the
first step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.tree_util import tree_flatten_with_path

from anytpu import _keras
from anytpu._jax import as_weak
from anytpu.errors import FileError, SettingError
from anytpu.train.checkpoint import Restored
from anytpu.train.variable_names import named_variables
from anytpu.train.variable_values import HostMemory, assign, finite_names, size_bytes


class Tracked:
    """Objects of a custom loop, by the names that the user chose.

    Args:
        objects: the objects by name.

    Raises:
        SettingError: an object has no state that can be saved, or is not built.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        models = [each for each in objects.values() if isinstance(each, keras.Model)]
        for each in objects.values():
            if isinstance(each, keras.optimizers.Optimizer) and not each.built and len(models) == 1:
                each.build(models[0].trainable_variables)
        kinds = {name: _kind(name, each) for name, each in objects.items()}
        self._memory: HostMemory | None = None
        self._finite: frozenset[str] = frozenset()
        self._with_variables = {name: each for name, each in objects.items() if kinds[name] == "variables"}
        self._iterators = {name: each for name, each in objects.items() if kinds[name] == "iterator"}
        self._trees = {name: each for name, each in objects.items() if kinds[name] == "tree"}
        self._began = self._attributes()
        self._leaves()  # Two equal names are an error before the first step.

    def named(self) -> dict[str, Any]:
        """Return the Keras variables by name; one that two objects have is named once."""
        groups: dict[str, list[Any]] = {}
        taken: set[int] = set()
        for name, each in sorted(self._with_variables.items(), key=lambda pair: not isinstance(pair[1], keras.Model)):
            groups[name] = [variable for variable in _variables(each) if id(variable) not in taken]
            taken |= {id(variable) for variable in groups[name]}
        owners = [
            part
            for each in self._with_variables.values()
            for part in (_keras.layers_of(each) if isinstance(each, keras.layers.Layer) else [each])
        ]
        return named_variables(groups, owners)

    @property
    def size_bytes(self) -> int:
        """Size of all values, in bytes."""
        return size_bytes(self._everything())

    def reserve(self) -> None:
        """Reserve the host's memory for `values`, in a thread, beside the first steps; note which values are finite."""
        everything, metrics = self._everything(), self.metrics()
        self._memory = HostMemory(everything)
        self._finite = finite_names({n: v for n, v in everything.items() if n.partition("/")[0] not in metrics})

    def values(self) -> dict[str, np.ndarray]:
        """Return copies of all arrays, by name; they replace those of the last call."""
        assert self._memory is not None
        return self._memory.copies(self._everything())

    def trained(self) -> frozenset[str]:
        """Return the names of the trainable weights."""
        weights = {name for name, v in self.named().items() if v.trainable and isinstance(v, keras.Variable)}
        return frozenset(weights - self.optimizer_state())

    def optimizer_state(self) -> frozenset[str]:
        """Return the names of the optimizers' variables."""
        optimizers = [n for n, each in self._with_variables.items() if isinstance(each, keras.optimizers.Optimizer)]
        return frozenset(name for name in self.named() if name.split("/")[0] in optimizers)

    def finite(self) -> frozenset[str]:
        """Return the names of the values that must be finite, since they were when the loop began.

        Metrics, and numbers and arrays of the host, may become a NaN: they are records, such as that of the losses.
        """
        records = {name for name, leaf in self._leaves().items() if not leaf.is_on_device}
        return self._finite - records

    def metrics(self) -> list[str]:
        """Return the names of the objects that are metrics."""
        return [name for name, each in self._with_variables.items() if isinstance(each, keras.metrics.Metric)]

    def positions(self) -> dict[str, Any]:
        """Return the state of each iterator, by name."""
        return {name: iterator.get_state() for name, iterator in self._iterators.items()}

    def restore(self, resumed: Restored) -> None:
        """Set all objects to the state of a checkpoint.

        Raises:
            FileError: the checkpoint has other arrays or iterators. Nothing is changed.
        """
        positions = resumed.host["positions"]
        if positions.keys() != self._iterators.keys():
            raise FileError(
                f"the checkpoint {resumed.where!r} has the positions of the iterators {sorted(positions)}, and these "
                f"are {sorted(self._iterators)}. Pass the same names, or choose another folder"
            )
        # All is checked before the first assignment, so that an error changes nothing.
        leaves, kinds = self._leaves(), resumed.host.get("leaves", {})
        for name, leaf in leaves.items():
            leaf.expect(resumed.values.get(name), kinds.get(name))
        assign(self.named() | leaves, resumed, "the objects of the loop")
        for name, tree in self._trees.items():
            if isinstance(tree, dict | list):
                _replace(tree, _with_new(name, tree, leaves))
        objects, state = self._split_objects()
        if objects:
            sys.modules["flax.nnx"].update(tuple(objects.values()), _with_new("", state, leaves, list(objects)))
        for name, value in resumed.host.get("attributes", {}).items():
            owner, _, attribute = name.rpartition("/")
            setattr(self._nodes()[owner], attribute, value)
        for name, iterator in self._iterators.items():
            iterator.set_state(positions[name])

    def host(self) -> dict[str, Any]:
        """Return the state that is not an array: the kinds of leaves, and attributes that changed since the start."""
        kinds = {name: leaf.kind for name, leaf in self._leaves().items() if leaf.kind is not None}
        changed = {name: v for name, v in self._attributes().items() if self._began.get(name, _TrackedLeaf) != v}
        return {"leaves": kinds, "attributes": changed}

    def _everything(self) -> dict[str, Any]:
        return self.named() | self._leaves()

    def _leaves(self) -> dict[str, _TrackedLeaf]:
        """Return the leaves of all trees by name."""
        objects, state = self._split_objects()
        named = [pair for name, tree in self._trees.items() for pair in _named_leaves(name, tree)]
        named += [(_name("", path, list(objects)), value) for path, value in tree_flatten_with_path(state)[0]]
        leaves = {name: _TrackedLeaf(value) for name, value in named if not _is_nnx(value)}
        if len(leaves) < sum(not _is_nnx(value) for _, value in named):
            names = [name for name, _ in named]
            twice = next(name for name in names if names.count(name) > 1)
            raise SettingError(f"two entries have the name {twice!r} in a checkpoint: rename one of them")
        return leaves

    def _objects(self) -> dict[str, Any]:
        """Return the objects of Flax NNX in all trees by name."""
        named = (pair for name, tree in self._trees.items() for pair in _named_leaves(name, tree))
        return {name: value for name, value in named if _is_nnx(value)}

    def _split_objects(self) -> tuple[dict[str, Any], Any]:
        """Return the objects of Flax NNX by name, and their state: one that two of them share is in it once."""
        objects = self._objects()
        return objects, sys.modules["flax.nnx"].split(tuple(objects.values()))[1] if objects else ()

    def _nodes(self) -> dict[str, Any]:
        """Return the parts of the NNX objects by name: modules, optimizers, streams of random keys."""
        objects = self._objects()
        if not objects:
            return {}
        nnx, names = sys.modules["flax.nnx"], list(objects)
        graph = nnx.iter_graph(tuple(objects.values()))
        return {"/".join([names[p[0]], *map(str, p[1:])]): node for p, node in graph if isinstance(node, nnx.Pytree)}

    def _attributes(self) -> dict[str, Any]:
        """Return the attributes of the NNX objects that are numbers or texts, such as `deterministic`, by name."""
        return {
            f"{name}/{attribute}": value
            for name, node in self._nodes().items()
            for attribute, value in vars(node).items()
            if type(value) in (bool, int, float, str)
        }


class _TrackedLeaf:
    """A leaf of a tree, with the attributes of a variable that `assign` and `HostMemory` use.

    Args:
        value: an array, a number or a random key; of a key, its words are stored.

    Attributes:
        kind: "bool", "int", "float" or "complex" for a number, "weak" for a weakly typed array, "key IMPL" for a key.
            None for other arrays.
        is_on_device: whether it is an array of JAX with one axis or more.
    """

    def __init__(self, value: Any) -> None:
        self._old, self._is_key = value, _is_key(value)
        self._value = jax.random.key_data(value) if self._is_key else value
        array = np.asarray(self._value) if not hasattr(self._value, "dtype") else self._value
        self.shape, self.dtype = array.shape, array.dtype
        self.is_on_device = isinstance(value, jax.Array) and value.ndim > 0
        self.kind: str | None = type(value).__name__ if type(value) in _NUMBERS else None
        if self._is_key:
            self.kind = f"key {jax.random.key_impl(value)}"
        elif getattr(value, "weak_type", False):
            self.kind = "weak"
        self.new: Any = None

    def expect(self, stored: np.ndarray | None, kind: str | None) -> None:
        """Take the kind of the saved leaf. A number may have become one of another type, or an array, since the start.

        Args:
            stored: the saved array, or None.
            kind: its kind, as in `kind`.
        """
        if stored is not None and stored.shape == self.shape and self.kind in ("weak", *_KINDS) and not self._is_key:
            self.dtype = stored.dtype
        self.kind = kind

    def assign(self, value: np.ndarray) -> None:
        """Make the new leaf: of the type of the saved one, and on the devices of the old one."""
        if self.kind in _KINDS:
            self.new = _KINDS[self.kind](value[()])
        elif isinstance(self._old, np.ndarray | np.generic):
            self.new = value if isinstance(self._old, np.ndarray) else value[()]
        else:
            # An array that is not committed to its device may be used with arrays on others.
            is_committed = isinstance(self._value, jax.Array) and self._value.committed
            self.new = jax.device_put(value, self._value.sharding if is_committed else None)
            if self.kind == "weak":
                self.new = as_weak(self.new)
            elif self.kind is not None:
                self.new = jax.random.wrap_key_data(self.new, impl=self.kind.removeprefix("key "))


_NUMBERS = (bool, int, float, complex)
_KINDS: dict[str | None, Any] = {kind.__name__: kind for kind in _NUMBERS}


def _kind(name: str, value: Any) -> str:
    """Return the kind of an object: "variables", "iterator" or "tree"."""
    if isinstance(value, keras.Variable | keras.random.SeedGenerator) or hasattr(value, "variables"):
        if _variables(value):
            return "variables"
        raise SettingError(
            f"{name} has no variables yet, so a checkpoint cannot hold them: build it first, for example with "
            f"{name}.build(...)"
        )
    if hasattr(value, "get_state") and hasattr(value, "set_state"):
        return "iterator"
    leaves = _named_leaves(name, value)
    bad = next(((path, leaf) for path, leaf in leaves if not (_is_nnx(leaf) or _is_stored(leaf))), None)
    if bad is None and (isinstance(value, dict | list) or _is_nnx(value)):
        return "tree"
    if bad is None:
        raise SettingError(
            f"{name} is a {type(value).__name__}, whose parts cannot be replaced. Put it into a dict, and assign each "
            f'new one there: state = {{"{name}": {name}}}, steps(..., state=state), state["{name}"] = ...'
        )
    raise SettingError(
        f"{bad[0]} is a {type(bad[1]).__name__}, whose state a checkpoint cannot hold. Pass a Keras model, an "
        "optimizer, a metric, a module of Flax NNX, an iterator with get_state and set_state, or a dict or a list of "
        "arrays, numbers and modules"
    )


def _named_leaves(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a tree by name. An NNX object is one. The rest of an Equinox module is its structure."""

    def is_leaf(node: Any) -> bool:
        return _is_nnx(node) or _is_equinox(node) or isinstance(node, Iterator)  # JAX warns of iterators.

    for path, node in tree_flatten_with_path(tree, is_leaf=is_leaf)[0]:
        parts = tree_flatten_with_path(node)[0] if _is_equinox(node) else [((), node)]
        for inner, leaf in parts:
            if _is_stored(leaf) or not _is_equinox(node):
                yield _name(name, (*path, *inner)), leaf


def _with_new(name: str, tree: Any, leaves: Mapping[str, _TrackedLeaf], owners: list[str] | None = None) -> Any:
    """Return a tree with the new value of each leaf."""

    def new(path: Any, leaf: Any) -> Any:
        stored = None if _is_nnx(leaf) else leaves.get(_name(name, path, owners))
        return leaf if stored is None else stored.new

    return jax.tree_util.tree_map_with_path(new, tree, is_leaf=_is_nnx if owners is None else None)


def _is_nnx(value: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Pytree | nnx.Variable)


def _is_equinox(value: Any) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(value, equinox.Module)


def _is_stored(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array | bool | int | float | complex)


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _variables(value: Any) -> list[Any]:
    if isinstance(value, keras.Variable):
        return [value]
    return [value.state] if isinstance(value, keras.random.SeedGenerator) else list(value.variables)


def _replace(tree: Any, new: Any) -> None:
    """Replace the entries of a dict or a list."""
    tree.clear()
    tree.update(new) if isinstance(tree, dict) else tree.extend(new)


def _name(name: str, path: Any, owners: list[str] | None = None) -> str:
    """Return the name of a leaf: "state/params/w".

    Args:
        name: name of the tree.
        path: path of the leaf in it.
        owners: for the state of NNX objects: their names, which the first part of the path counts.
    """
    # The value of an NNX variable is an attribute of it, and has the name of the variable.
    parts = [jax.tree_util.keystr((key,), simple=True) for key in path if key != jax.tree_util.GetAttrKey("value")]
    return "/".join([name, *parts] if owners is None else [owners[int(parts[0])], *parts[1:]])
