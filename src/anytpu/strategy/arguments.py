"""The arguments of one run, split into array leaves and static leaves.

Idea: arrays, numbers and `PerReplica` are passed to the compiled step. A bool, a string, None or a model is static: it
is fixed when the step is compiled, like a literal in its code.

Rule: an `ArgumentForm` describes everything about the arguments except the values of array leaves, so compiled steps
are cached by its `key`. The form holds the static objects that are compared by identity; the key does not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from anytpu import _jax
from anytpu.errors import ReplicaError, SettingError
from anytpu.program.program import REPLICATED, ROWS, Layout, Tree, spec_of
from anytpu.strategy.per_replica import PerReplica

_BY_VALUE = (bool, str, bytes, type(None))
_NUMBERS = (int, float, complex)
_NOT_NUMBERS = "USOMm"


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayLeaf:
    """A leaf that is passed to the compiled step.

    Attributes:
        shape: shape of the array; for a `PerReplica` that of the stacked array, `(replicas, ...)`.
        dtype: dtype that JAX computes with.
        is_split: True if each replica gets its own part.
        is_padded: True if the parts have pad rows.
        is_weak: True if its type is weak, as that of a Python number: other operands decide the dtype of a result.
    """

    shape: tuple[int, ...]
    dtype: Any
    is_split: bool
    is_padded: bool = False
    is_weak: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class StaticLeaf:
    """A leaf that is part of the code. Bools and strings are compared by value, other objects by identity.

    Attributes:
        value: the bool, string, None or object.
    """

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StaticLeaf):
            return False
        return self.value is other.value or self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def is_by_value(self) -> bool:
        """Whether the value is compared by equality, not by identity."""
        return isinstance(self.value, _BY_VALUE)

    @property
    def key(self) -> tuple[type, Any]:
        """Cache key of the leaf, the same for equal leaves. It holds no object that is compared by identity."""
        return type(self.value), self.value if self.is_by_value else id(self.value)


@dataclasses.dataclass(frozen=True, slots=True)
class ArgumentForm:
    """The form of the arguments of a run: everything except the values of array leaves.

    Attributes:
        tree: structure of `(args, kwargs)`, with each `PerReplica` as a leaf.
        leaves: the leaves, in order.
        counts: number of real rows of each replica, if the batch has pads; otherwise None.
    """

    tree: Any
    leaves: tuple[ArrayLeaf | StaticLeaf, ...]
    counts: tuple[int, ...] | None = None

    @property
    def key(self) -> tuple:
        """Cache key of the form, the same for equal forms. It does not hold the objects of `objects`."""
        return self.tree, tuple([leaf.key if type(leaf) is StaticLeaf else leaf for leaf in self.leaves]), self.counts

    @property
    def objects(self) -> list[Any]:
        """The static leaves that are compared by identity, such as a model."""
        return [leaf.value for leaf in self.leaves if type(leaf) is StaticLeaf and not leaf.is_by_value]

    def rebuilt(self, arrays: list[Any]) -> tuple[tuple, dict]:
        """Return `(args, kwargs)` with these arrays as the array leaves."""
        remaining = iter(arrays)
        leaves = [leaf.value if type(leaf) is StaticLeaf else next(remaining) for leaf in self.leaves]
        return jax.tree.unflatten(self.tree, leaves)

    def typed(self, arrays: list[Any]) -> list[Any]:
        """Return the passed arrays with weak types where the arguments had them."""
        pairs = zip(arrays, self._array_leaves(), strict=True)
        return [_jax.as_weak(array) if leaf.is_weak else array for array, leaf in pairs]

    def specs(self) -> list[jax.ShapeDtypeStruct]:
        """Return the spec of each passed array."""
        return [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in self._array_leaves()]

    def layouts(self) -> list[Layout]:
        """Return the layout of each passed array."""
        return [ROWS if leaf.is_split else REPLICATED for leaf in self._array_leaves()]

    def has_rows(self) -> list[bool]:
        """Return a flag for each passed array: True if its first axis is rows, some of which are pads."""
        return [leaf.is_padded for leaf in self._array_leaves()]

    def with_rows(self, rows: int) -> ArgumentForm:
        """Return the form of a batch with so many rows on every replica."""
        return ArgumentForm(self.tree, tuple(_with_rows(leaf, rows) for leaf in self.leaves))

    def _array_leaves(self) -> list[ArrayLeaf]:
        return [leaf for leaf in self.leaves if type(leaf) is ArrayLeaf]


def split_arguments(args: Any, kwargs: Any, replicas: int) -> tuple[ArgumentForm, list[Any]]:
    """Split the arguments of a run into their form and the passed values.

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments, or None.
        replicas: number of parts that a `PerReplica` must have.

    Returns:
        The form, and the passed values: arrays, Python numbers and `PerReplica`.

    Raises:
        SettingError: `args` is not a tuple or `kwargs` not a dict, or a leaf is a Keras variable or holds strings.
        ReplicaError: a `PerReplica` has another number of parts, or parts of different shapes; or two of them have
            different counts of real rows.
    """
    if not isinstance(args, tuple | list):
        raise SettingError(
            f"args must be a tuple with one value for each argument of the function, not {value_text(args)}: "
            "for one argument x type strategy.run(fn, args=(x,))"
        )
    if not isinstance(kwargs, dict | None):
        raise SettingError(
            f'kwargs must be a dictionary such as {{"training": True}}, or None, not {value_text(kwargs)}'
        )
    values, tree = jax.tree.flatten((tuple(args), kwargs or {}), is_leaf=_is_leaf)
    arrays: list[Any] = []
    leaves: list[ArrayLeaf | StaticLeaf] = []
    uneven: list[PerReplica] = []
    for value in values:
        leaf = _leaf(value, arrays)
        leaves.append(leaf)
        if type(leaf) is ArrayLeaf and leaf.is_padded:
            uneven.append(value)
    _check(leaves, replicas, tree)
    return ArgumentForm(tree, tuple(leaves), _rows_of(uneven) if uneven else None), arrays


def _is_leaf(node: Any) -> bool:
    return isinstance(node, StaticLeaf | PerReplica)


def with_weak_types(tree: Tree, specs: Tree) -> Tree:
    """Return a tree of arrays with weak types where their specs have them."""
    return jax.tree.map(lambda array, spec: _jax.as_weak(array) if _jax.is_weak(spec) else array, tree, specs)


def weak_spec_of(tree: Tree) -> Tree:
    """Return the specs of a tree of arrays and numbers, as `spec_of` does, with their weak types."""

    def weak_spec(value: Any, spec: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(spec.shape, spec.dtype, weak_type=_jax.is_weak(value))

    return jax.tree.map(weak_spec, tree, spec_of(tree))


def promoted_state(specs: Tree, new: Tree) -> Tree:
    """Return the specs of a state, in which a leaf of weak type has the type of its new value, as in `jax.lax.scan`."""
    if jax.tree.structure(specs) != jax.tree.structure(new):
        return specs  # Lowering rejects the new state with an error that shows both structures.

    def promoted(old: jax.ShapeDtypeStruct, new: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        is_same_kind = jnp.issubdtype(old.dtype, jnp.inexact) == jnp.issubdtype(new.dtype, jnp.inexact)
        return new if old.weak_type and is_same_kind and old.shape == new.shape else old

    return jax.tree.map(promoted, specs, new)


def _rows_of(uneven: list[PerReplica]) -> tuple[int, ...]:
    """Return the number of rows of each replica, from the values of one batch."""
    row_counts = dict.fromkeys(value.rows for value in uneven)
    if len(row_counts) > 1:
        listed = " and ".join(str(list(rows or ())) for rows in row_counts)
        raise ReplicaError(
            f"two batches that do not fill all replicas are passed together, with {listed} rows on the replicas: pass "
            "the parts of one batch, as one next(iterator) returns them"
        )
    (rows,) = row_counts
    assert rows is not None
    return rows


def _with_rows(leaf: ArrayLeaf | StaticLeaf, rows: int) -> ArrayLeaf | StaticLeaf:
    if isinstance(leaf, StaticLeaf) or not leaf.is_padded:
        return leaf
    return dataclasses.replace(leaf, shape=(leaf.shape[0], rows, *leaf.shape[2:]))


def _leaf(value: Any, arrays: list[Any]) -> ArrayLeaf | StaticLeaf:
    """Return the description of a leaf, and append its value to `arrays` if it is an array leaf."""
    if isinstance(value, StaticLeaf):
        return value
    if isinstance(value, jax.Array):
        leaf = ArrayLeaf(value.shape, value.dtype, False, False, getattr(value, "weak_type", False))
    elif isinstance(value, PerReplica):
        leaf = ArrayLeaf(*value.passed_form())
    elif isinstance(value, bool | keras.Variable):
        return StaticLeaf(value)
    elif isinstance(value, _NUMBERS):
        leaf = ArrayLeaf((), jax.dtypes.canonicalize_dtype(type(value)), False, False, _jax.is_weak(value))
    elif hasattr(value, "__array__"):
        value = np.asarray(value)
        leaf = ArrayLeaf(value.shape, _jax_dtype(value.dtype), False)
    else:
        return StaticLeaf(value)
    arrays.append(value)
    return leaf


def _jax_dtype(dtype: np.dtype) -> Any:
    """Return the dtype that JAX uses for a NumPy dtype; non-numeric dtypes are returned unchanged."""
    return dtype if dtype.kind in _NOT_NUMBERS else jax.dtypes.canonicalize_dtype(dtype)


def _check(leaves: list[ArrayLeaf | StaticLeaf], replicas: int, tree: Any) -> None:
    """Reject leaves that cannot be passed to a step."""
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, StaticLeaf):
            if isinstance(leaf.value, keras.Variable):
                raise SettingError(
                    f"{_name(tree, index)} is the Keras variable {leaf.value.path!r}, and an argument is a value that "
                    "a step cannot write back to. Let the function use the variable by its own name, or pass the "
                    "model, the optimizer or the metric that has it"
                )
        elif leaf.is_split:
            if leaf.shape[0] != replicas:
                raise ReplicaError(
                    f"{_name(tree, index)} is a PerReplica of {leaf.shape[0]} values, and the strategy has {replicas} "
                    "replicas: pass one value for each of them, or a plain array, which goes to all"
                )
        elif isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in _NOT_NUMBERS:
            raise SettingError(
                f"{_name(tree, index)} holds {leaf.dtype}, which no TPU computes with. Turn its values into numbers "
                "first, for example strings with keras.layers.StringLookup or np.unique(..., return_inverse=True), and "
                "objects with np.stack"
            )


def _name(tree: Any, index: int) -> str:
    """Return a leaf's path in the user's notation: `args[0]['x']`."""
    paths = jax.tree_util.tree_flatten_with_path(tree.unflatten(range(tree.num_leaves)))[0]
    path = paths[index][0]
    return ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])


def value_text(value: Any) -> str:
    """Return a value for an error text; of an array only its shape."""
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray | jax.Array) else repr(value)
