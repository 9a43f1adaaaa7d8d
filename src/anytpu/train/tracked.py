"""`Tracked`: the objects of a custom loop whose state a checkpoint holds.

Idea: an object is one of three kinds. A Keras object has variables: a model, an optimizer, a metric, a seed generator.
An iterator has `get_state` and `set_state`. A dict or a list has arrays and numbers, in any tree, such as the
parameters of a JAX program. Its entries are replaced, and an array returns to the devices that it was on.

Rule: an object of another kind is rejected by name, before the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import FileError, SettingError
from anytpu.train.checkpoint import Restored
from anytpu.train.variable_names import named_variables
from anytpu.train.variable_values import HostMemory, assign, size_bytes


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
        self._with_variables = {name: each for name, each in objects.items() if kinds[name] == "variables"}
        self._iterators = {name: each for name, each in objects.items() if kinds[name] == "iterator"}
        self._trees = {name: each for name, each in objects.items() if kinds[name] == "tree"}

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
        """Reserve the host's memory for `values`, in a thread, beside the first steps."""
        self._memory = HostMemory(self._everything())

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
        everything = self._everything()
        assign(everything, resumed, "the objects of the loop")
        for name, tree in self._trees.items():
            _replace(
                tree, jax.tree_util.tree_map_with_path(lambda path, _, n=name: everything[_name(n, path)].new, tree)
            )
        for name, iterator in self._iterators.items():
            iterator.set_state(positions[name])

    def _everything(self) -> dict[str, Any]:
        leaves = {
            _name(name, path): _Leaf(leaf)
            for name, tree in self._trees.items()
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        }
        return self.named() | leaves


class _Leaf:
    """A leaf of a tree, with the attributes of a variable that `assign` and `HostMemory` use.

    Args:
        value: an array or a number.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        array = np.asarray(value) if not hasattr(value, "dtype") else value
        self.shape, self.dtype = array.shape, array.dtype
        self.new: Any = None

    def assign(self, value: np.ndarray) -> None:
        """Make the new leaf: of the same type, and on the same devices."""
        if isinstance(self._value, jax.Array):
            self.new = jax.device_put(value, self._value.sharding)
        else:
            self.new = value if isinstance(self._value, np.ndarray) else type(self._value)(value[()])


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
    leaves = jax.tree.leaves(value) if isinstance(value, dict | list) else [None]
    if any(isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
        raise SettingError(
            f"{name} has a random key, which a checkpoint cannot hold. Pass its words, jax.random.key_data(key), and "
            "make the key again with jax.random.wrap_key_data(words)"
        )
    if leaves and all(isinstance(leaf, np.ndarray | np.generic | jax.Array | bool | int | float) for leaf in leaves):
        return "tree"
    raise SettingError(
        f"{name} is a {type(value).__name__}, whose state a checkpoint cannot hold. Pass a Keras model, an optimizer, "
        "a metric, an iterator with get_state and set_state, or a dict or a list of arrays and numbers"
    )


def _variables(value: Any) -> list[Any]:
    if isinstance(value, keras.Variable):
        return [value]
    return [value.state] if isinstance(value, keras.random.SeedGenerator) else list(value.variables)


def _replace(tree: Any, new: Any) -> None:
    """Replace the entries of a dict or a list."""
    tree.clear()
    tree.update(new) if isinstance(tree, dict) else tree.extend(new)


def _name(name: str, path: Any) -> str:
    return "/".join([name, *(jax.tree_util.keystr((key,), simple=True) for key in path)])
