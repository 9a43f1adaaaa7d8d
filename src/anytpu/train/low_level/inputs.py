"""What may go into a low-level call: lists of numbers and arrays, which the shards divide.

Rule: each refusal names the input as its owner writes it, `inputs[0]['x']`.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.core import Tracer

from anytpu.errors import SettingError, SettingTypeError
from anytpu.strategy.per_replica import PerReplica, is_per_replica

SUPPORTED = ("bool", "int8 to int64", "uint8 to uint64", "bfloat16", "float16 to float64", "complex64", "complex128")
"""What travels to a core; what is wider than 32 bits becomes 32 bits there unless JAX's 64-bit mode is on."""

_NUMBERS = "biufcV"  # NumPy calls bfloat16 and its kin void.


def checked_inputs(inputs: Any, name: str) -> list[Any]:
    """Return the inputs of a call as a list of trees of arrays and numbers.

    Args:
        inputs: what the caller gave; None means none.
        name: the function that was called.

    Raises:
        SettingTypeError: it is not a list, or something in it is no number or array of numbers.
        SettingError: something in it is being traced by JAX.
    """
    if inputs is None:
        return []
    if not isinstance(inputs, list | tuple):
        raise SettingTypeError(
            f"tpu.{name}()'s inputs must be a list of arrays, or of trees of them, or None, not {_what(inputs)}: "
            f"for one input x type tpu.{name}(computation, [x])"
        )
    return [_checked_tree(one, f"inputs[{index}]", name) for index, one in enumerate(inputs)]


def checked_replicas(inputs: Any) -> list[list[Any]]:
    """Return the inputs of `replicate`: one list for each replica, all of the same trees, shapes and types.

    Raises:
        SettingTypeError: they are not lists, or something in them is no number or array of numbers.
        SettingError: the replicas' inputs are not alike.
    """
    if not isinstance(inputs, list | tuple) or not inputs or not all(isinstance(one, list | tuple) for one in inputs):
        raise SettingTypeError(
            "tpu.replicate() inputs must be a list of lists/tuples, one for each replica, for example "
            f"[[x0, y0], [x1, y1]], not {_what(inputs)}"
        )
    counts = [len(one) for one in inputs]
    if len(set(counts)) > 1:
        raise SettingError(
            f"replicas must have the same number of inputs, and these have {', '.join(map(str, counts))}"
        )
    given = [
        [_checked_tree(one, f"inputs[{replica}][{index}]", "replicate") for index, one in enumerate(each)]
        for replica, each in enumerate(inputs)
    ]
    kinds = [_kind(each) for each in given]
    for replica, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise SettingError(
                f"replicas must have matching input types, and replica {replica} has {kind[1]} where replica 0 has "
                f"{kinds[0][1]}"
            )
    return given


def checked_axes(axes: Any, count: int, name: str, what: str) -> list[int | None] | None:
    """Return a list with an axis, or None, for each input or output; None as it is.

    Raises:
        SettingError: it is no such list.
    """
    if axes is None:
        return None
    if not isinstance(axes, list | tuple) or not all(one is None or _is_axis(one) for one in axes):
        raise SettingError(f"{name} must be a list of axes, such as [0, 1, None], or None, not {axes!r}")
    if len(axes) != count:
        counted = what if count != 1 else what.removesuffix("s")
        raise SettingError(
            f"length of {name} must be equal to the number of {what}: there are {len(axes)} axes for {count} {counted}"
        )
    return [None if one is None else int(one) for one in axes]


def split_size(leaf: Any, axis: int, shards: int, name: str) -> int:
    """Return the axis of an array that is split over the shards, counted from 0.

    Raises:
        SettingError: the array has no such axis, or the shards do not divide it.
    """
    if isinstance(leaf, PerReplica):
        return 0
    shape = np.shape(leaf)
    if not -len(shape) <= axis < len(shape):
        raise SettingError(
            f"{name} has the shape {shape}, which has no axis {axis} to split: give every shard the whole of it with "
            "None in its place, as in input_shard_axes=[0, None]"
        )
    size = shape[axis]
    if size % shards:
        near = " or ".join(str(n) for n in (size - size % shards, size + -size % shards) if n)
        raise SettingError(
            f"{name} of shape {shape} cannot be sharded {shards} ways along dimension {axis}: {size} is not a multiple "
            f"of {shards}. Give it {near}, choose num_shards, or let strategy.distribute_dataset deal the rows out, "
            "which does it for any number of them"
        )
    return axis % len(shape)


def _checked_tree(tree: Any, name: str, function: str) -> Any:
    def one(path: Any, leaf: Any) -> Any:
        return _checked_leaf(leaf, name + jax.tree_util.keystr(path), function)

    return jax.tree_util.tree_map_with_path(one, tree, is_leaf=is_per_replica)


def _checked_leaf(leaf: Any, name: str, function: str) -> Any:
    if isinstance(leaf, PerReplica | jax.Array):
        if isinstance(leaf, Tracer):
            raise SettingError(
                f"{name} is being traced by JAX, and tpu.{function} compiles by itself: call it outside of jax.jit, "
                "jax.grad and jax.vmap"
            )
        return leaf
    if isinstance(leaf, keras.Variable):
        return leaf  # `strategy.run` says what to do with it.
    array = np.asarray(leaf)
    if array.dtype.kind not in _NUMBERS:
        raise SettingTypeError(
            f"{name} holds {_type_name(array)}, which is not a supported TPU infeed type. Supported types are: "
            f"{', '.join(SUPPORTED)}. Turn its values into numbers first, for example strings with "
            "np.unique(..., return_inverse=True) or keras.layers.StringLookup"
        )
    return leaf if isinstance(leaf, np.ndarray | numbers.Number) and not isinstance(leaf, bool) else array


def _type_name(array: np.ndarray) -> str:
    names = {"U": "string", "S": "string", "O": "objects", "M": "datetime64", "m": "timedelta64"}
    return names.get(array.dtype.kind, str(array.dtype))


def _kind(inputs: list[Any]) -> tuple[Any, str]:
    """Return what must be the same for all replicas: the tree of the inputs, and their shapes and types in words."""
    leaves, tree = jax.tree.flatten(inputs)
    return tree, ", ".join(_types(leaves)) or "no inputs"


def _types(leaves: Sequence[Any]) -> Iterator[str]:
    for leaf in leaves:
        dtype = jax.dtypes.canonicalize_dtype(np.result_type(leaf))
        yield f"{dtype}{list(np.shape(leaf))}"


def _is_axis(one: Any) -> bool:
    return isinstance(one, numbers.Integral) and not isinstance(one, bool)


def _what(value: Any) -> str:
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray | jax.Array) else repr(value)
