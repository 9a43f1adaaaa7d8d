"""The arguments of one run, parted into what travels to the cores and what is part of the step's code.

Idea: arrays, numbers and `PerReplica` travel; a bool, a string, None or a model is fixed when the step is compiled, as
if it were written in it.

Rule: a `Form` says everything about the arguments but the values that travel, so a compiled step is kept by its `key`.
The form holds the fixed objects that it compares by identity, the key does not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import keras
import numpy as np

from anytpu.errors import ReplicaError, SettingError
from anytpu.program.program import REPLICATED, ROWS, Layout
from anytpu.strategy.per_replica import PerReplica, is_per_replica
from anytpu.strategy.replicas import RowCounts, Shard

_BY_VALUE = (bool, str, bytes, type(None))
_NUMBERS = (int, float, complex)
_NOT_NUMBERS = "USOMm"


@dataclasses.dataclass(frozen=True, slots=True)
class Travels:
    """A leaf that travels.

    Attributes:
        shape: of the array; of the stacked one, `(replicas, ...)`, for a `PerReplica`.
        dtype: the one that JAX computes with.
        is_split: each replica gets its own part.
        is_padded: the parts have pads.
    """

    shape: tuple[int, ...]
    dtype: Any
    is_split: bool
    is_padded: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    """A leaf that is part of the code: an equal bool or string is the same, any other object only itself."""

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fixed):
            return False
        return self.value is other.value or self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def is_by_value(self) -> bool:
        """Whether an equal value is the same."""
        return isinstance(self.value, _BY_VALUE)

    @property
    def key(self) -> tuple[type, Any]:
        """What equal leaves have in common. It does not hold an object that counts by identity."""
        return type(self.value), self.value if self.is_by_value else id(self.value)


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """Everything about the arguments of a run but the values that travel.

    Where the batch does not fill all replicas, the real rows of each replica travel too, behind the leaves.

    Attributes:
        tree: the structure of `(args, kwargs)`, a `PerReplica` being a leaf.
        leaves: each leaf, in order.
        room: the rows of each replica with pads, where some are pads; else None.
        counts: the real rows of each replica, where some are pads. They travel, so they make no other form; a step that
            asks for them is compiled for them.
    """

    tree: Any
    leaves: tuple[Travels | Fixed, ...]
    room: int | None = None
    counts: RowCounts | None = dataclasses.field(default=None, compare=False)

    @property
    def key(self) -> tuple:
        """What equal forms have in common. It does not hold the objects of `objects`."""
        return self.tree, tuple([one.key if type(one) is Fixed else one for one in self.leaves]), self.room

    @property
    def objects(self) -> list[Any]:
        """The leaves that are part of the code and count by identity, such as a model."""
        return [one.value for one in self.leaves if type(one) is Fixed and not one.is_by_value]

    def rebuilt(self, arrays: list[Any]) -> tuple[tuple, dict]:
        """Return `(args, kwargs)` with these arrays in the place of the leaves that travel."""
        rest = iter(arrays)
        return jax.tree.unflatten(self.tree, [one.value if type(one) is Fixed else next(rest) for one in self.leaves])

    def specs(self) -> list[jax.ShapeDtypeStruct]:
        """Return the spec of each array that travels."""
        return [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in self._travellers()]

    def layouts(self) -> list[Layout]:
        """Return the layout of each array that travels."""
        return [ROWS if one.is_split else REPLICATED for one in self._travellers()]

    def parts(self) -> list[jax.ShapeDtypeStruct]:
        """Return the spec of one replica's part of each array that travels."""
        return [
            jax.ShapeDtypeStruct(one.shape[1:] if one.is_split else one.shape, one.dtype) for one in self._travellers()
        ]

    def has_rows(self) -> list[bool]:
        """Return which arrays that travel have an axis of rows in front, some of which are pads."""
        return [one.is_padded for one in self._travellers()]

    def shard(self, arrays: list[Any], *, is_recorded: bool = False) -> Shard | None:
        """Return one replica's part of a batch that does not fill all replicas, from what travelled to it."""
        return None if self.room is None else Shard(arrays[-1], self.room, self.counts, is_recorded)

    def of_rows(self, room: int) -> Form:
        """Return the form of a batch that has so many rows a replica."""
        return Form(self.tree, tuple(_of_rows(leaf, room) for leaf in self.leaves), room, self.counts)

    def _travellers(self) -> list[Travels]:
        leaves = [one for one in self.leaves if type(one) is Travels]
        if self.room is None:
            return leaves
        replicas = next(one.shape[0] for one in leaves if one.is_split)
        return [*leaves, Travels((replicas,), np.dtype("int32"), True)]


def parted(args: Any, kwargs: Any, replicas: int) -> tuple[Form, list[Any]]:
    """Part the arguments of a run.

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments, or None.
        replicas: how many parts a `PerReplica` must have.

    Returns:
        The form, and what travels: arrays, Python numbers and `PerReplica`, the last one being the real rows of each
        replica where some are pads.

    Raises:
        SettingError: `args` is not a tuple or `kwargs` not a dict, or a leaf is a Keras variable or holds strings.
        ReplicaError: a `PerReplica` has another number of parts, or parts of different shapes; or two of them have
            different real rows.
    """
    if not isinstance(args, tuple | list):
        raise SettingError(
            f"args must be a tuple with one value for each argument of the function, not {_what(args)}: "
            "for one argument x type strategy.run(fn, args=(x,))"
        )
    if not isinstance(kwargs, dict | None):
        raise SettingError(f'kwargs must be a dictionary such as {{"training": True}}, or None, not {_what(kwargs)}')
    values, tree = jax.tree.flatten(
        (tuple(args), kwargs or {}), is_leaf=lambda one: isinstance(one, Fixed) or is_per_replica(one)
    )
    arrays: list[Any] = []
    leaves = tuple([_leaf(value, arrays) for value in values])
    for index, leaf in enumerate(leaves):
        _check(leaf, replicas, tree, index)
    uneven = [value for value in values if isinstance(value, PerReplica) and value.rows is not None]
    if not uneven:
        return Form(tree, leaves), arrays
    rows, room = _rows_of(uneven)
    return Form(tree, leaves, room, RowCounts(rows)), [*arrays, PerReplica.of_stack(np.array(rows, np.int32))]


def _rows_of(uneven: list[PerReplica]) -> tuple[tuple[int, ...], int]:
    """Return the real rows of each replica, and the rows with pads, of values of one batch."""
    found = dict.fromkeys((one.rows, one.spec().shape[1]) for one in uneven)
    if len(found) > 1:
        listed = " and ".join(str(list(rows or ())) for rows, _ in found)
        raise ReplicaError(
            f"two batches that do not fill all replicas are passed together, with {listed} rows on the replicas: pass "
            "the parts of one batch, as one next(iterator) returns them"
        )
    ((rows, room),) = found
    assert rows is not None
    return rows, room


def _of_rows(leaf: Travels | Fixed, room: int) -> Travels | Fixed:
    if isinstance(leaf, Fixed) or not leaf.is_padded:
        return leaf
    return dataclasses.replace(leaf, shape=(leaf.shape[0], room, *leaf.shape[2:]))


def _leaf(value: Any, arrays: list[Any]) -> Travels | Fixed:
    """Return what a leaf is, and append it to the arrays when it travels."""
    if isinstance(value, Fixed):
        return value
    if isinstance(value, jax.Array):
        leaf = Travels(value.shape, value.dtype, False)
    elif isinstance(value, PerReplica):
        leaf = Travels(*value.travelling(), not value.is_shared, value.rows is not None)
    elif isinstance(value, bool | keras.Variable):
        return Fixed(value)
    elif isinstance(value, _NUMBERS):
        leaf = Travels((), jax.dtypes.canonicalize_dtype(type(value)), False)
    elif hasattr(value, "__array__"):
        value = np.asarray(value)
        leaf = Travels(value.shape, _computed(value.dtype), False)
    else:
        return Fixed(value)
    arrays.append(value)
    return leaf


def _computed(dtype: np.dtype) -> Any:
    """Return the dtype that JAX computes with in the place of one of NumPy's; what is no number as it is."""
    return dtype if dtype.kind in _NOT_NUMBERS else jax.dtypes.canonicalize_dtype(dtype)


def _check(leaf: Travels | Fixed, replicas: int, tree: Any, index: int) -> None:
    if isinstance(leaf, Fixed):
        if isinstance(leaf.value, keras.Variable):
            _refuse_variable(_name(tree, index), leaf.value)
    elif leaf.is_split:
        if leaf.shape[0] != replicas:
            _refuse_count(_name(tree, index), leaf.shape[0], replicas)
    elif isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in _NOT_NUMBERS:
        _refuse_dtype(_name(tree, index), leaf.dtype)


def _name(tree: Any, index: int) -> str:
    """Return how the user writes a leaf: `args[0]['x']`."""
    paths = jax.tree_util.tree_flatten_with_path(tree.unflatten(range(tree.num_leaves)))[0]
    path = paths[index][0]
    return ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])


def _what(value: Any) -> str:
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray | jax.Array) else repr(value)


def _refuse_count(name: str, count: int, replicas: int) -> None:
    raise ReplicaError(
        f"{name} is a PerReplica of {count} values, and the strategy has {replicas} replicas: pass one value for each "
        "of them, or a plain array, which goes to all"
    )


def _refuse_dtype(name: str, dtype: np.dtype) -> None:
    raise SettingError(
        f"{name} holds {dtype}, which no TPU computes with. Turn its values into numbers first, for example strings "
        "with keras.layers.StringLookup or np.unique(..., return_inverse=True), and objects with np.stack"
    )


def _refuse_variable(name: str, variable: Any) -> None:
    raise SettingError(
        f"{name} is the Keras variable {variable.path!r}, and an argument is a value that a step cannot write back to. "
        "Let the function use the variable by its own name, or pass the model, the optimizer or the metric that has it"
    )
