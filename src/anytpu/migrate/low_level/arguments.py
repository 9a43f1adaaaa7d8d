"""Choose the cores of a low-level call, and check its inputs: lists of numbers and arrays, divisible by the shards.

Idea: the first low-level programs had to set the number of shards, and ran on one shard by default. Here a call uses
the strategy in scope, or else the system initialised last, or else the system that `tpu.connect()` finds.

Rule: one strategy is kept for each system, so that a function is compiled once for all its calls. Each error names the
input as the user writes it, `inputs[0]['x']`.
"""

from __future__ import annotations

import numbers
from typing import Any

import jax
import keras
import numpy as np
from jax.core import Tracer

from anytpu.errors import SettingError, SettingTypeError, StrategyError
from anytpu.strategy.arguments import value_text
from anytpu.strategy.current import CURRENT
from anytpu.strategy.per_replica import PerReplica, is_per_replica
from anytpu.strategy.replicas import current_replica
from anytpu.strategy.strategy import TPUStrategy, connect
from anytpu.system.lifecycle import System, current_system, running_system
from anytpu.system.resolver import TPUClusterResolver

SUPPORTED = ("bool", "int8 to int64", "uint8 to uint64", "bfloat16", "float16 to float64", "complex64", "complex128")
"""The dtypes that a core accepts; types wider than 32 bits are narrowed to 32 bits unless JAX's 64-bit mode is on."""

_TYPE_NAMES = {"U": "string", "S": "string", "O": "objects", "M": "datetime64", "m": "timedelta64"}
_NUMBERS = "biufcV"  # In NumPy, bfloat16 and the other types of ml_dtypes are of kind V (void).


def checked_inputs(inputs: Any, name: str) -> list[Any]:
    """Return the inputs of a call as a list of trees of arrays and numbers.

    Args:
        inputs: the caller's inputs; None means no inputs.
        name: name of the called function.

    Raises:
        SettingTypeError: `inputs` is not a list, or a leaf is neither a number nor an array of numbers.
        SettingError: a leaf is being traced by JAX.
    """
    if inputs is None:
        return []
    if not isinstance(inputs, list | tuple):
        raise SettingTypeError(
            f"tpu.{name}()'s inputs must be a list of arrays, or of trees of arrays, or None, not "
            f"{value_text(inputs)}: for one input x type tpu.{name}(computation, [x])"
        )
    return [_checked_tree(tree, f"inputs[{index}]", name) for index, tree in enumerate(inputs)]


def checked_replicas(inputs: Any) -> list[list[Any]]:
    """Return the inputs of `replicate`: one list for each replica, all of the same trees, shapes and types.

    Raises:
        SettingTypeError: `inputs` is not a list of lists, or a leaf is neither a number nor an array of numbers.
        SettingError: the replicas' inputs differ in number, structure, shape or type.
    """
    if not isinstance(inputs, list | tuple) or not inputs or not all(isinstance(row, list | tuple) for row in inputs):
        raise SettingTypeError(
            "tpu.replicate() inputs must be a list of lists/tuples, one for each replica, for example "
            f"[[x0, y0], [x1, y1]], not {value_text(inputs)}"
        )
    counts = [len(trees) for trees in inputs]
    if len(set(counts)) > 1:
        raise SettingError(
            f"replicas must have the same number of inputs, and these have {', '.join(map(str, counts))}"
        )
    checked = [
        [_checked_tree(tree, f"inputs[{replica}][{index}]", "replicate") for index, tree in enumerate(trees)]
        for replica, trees in enumerate(inputs)
    ]
    kinds = [_kind(trees) for trees in checked]
    for replica, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise SettingError(
                f"replicas must have matching input types, and replica {replica} has {kind[1]} where replica 0 has "
                f"{kinds[0][1]}"
            )
    return checked


def checked_axes(axes: Any, count: int, name: str, noun: str) -> list[int | None] | None:
    """Return a list with an axis, or None, for each input or output; None if `axes` is None.

    Args:
        axes: the caller's list of axes, or None.
        count: number of inputs or outputs.
        name: name of the argument.
        noun: "inputs" or "outputs".

    Raises:
        SettingError: `axes` is not a list of `count` axes.
    """
    if axes is None:
        return None
    if not isinstance(axes, list | tuple) or not all(axis is None or _is_integer(axis) for axis in axes):
        raise SettingError(f"{name} must be a list of axes, such as [0, 1, None], or None, not {axes!r}")
    if len(axes) != count:
        counted = noun if count != 1 else noun.removesuffix("s")
        raise SettingError(
            f"length of {name} must be equal to the number of {noun}: there are {len(axes)} axes for {count} {counted}"
        )
    return [None if axis is None else int(axis) for axis in axes]


def checked_split_axis(leaf: Any, axis: int, shards: int, name: str) -> int:
    """Return the axis of an array to split over the shards, as an index of at least 0.

    Raises:
        SettingError: the array has no such axis, or its size is not divisible by the number of shards.
    """
    if isinstance(leaf, PerReplica):
        return 0
    shape = np.shape(leaf)
    if not -len(shape) <= axis < len(shape):
        raise SettingError(
            f"{name} has the shape {shape}, which has no axis {axis} to split: give every shard the whole array with "
            "None in the list, as in input_shard_axes=[0, None]"
        )
    size = shape[axis]
    if size % shards:
        near = " or ".join(str(n) for n in (size - size % shards, size + -size % shards) if n)
        raise SettingError(
            f"{name} of shape {shape} cannot be sharded {shards} ways along dimension {axis}: {size} is not a multiple "
            f"of {shards}. Give it {near}, choose num_shards, or let strategy.distribute_dataset distribute the rows, "
            "which works for any number of them"
        )
    return axis % len(shape)


def _checked_tree(tree: Any, name: str, function: str) -> Any:
    def check(path: Any, leaf: Any) -> Any:
        return _checked_leaf(leaf, name + jax.tree_util.keystr(path), function)

    return jax.tree_util.tree_map_with_path(check, tree, is_leaf=is_per_replica)


def _checked_leaf(leaf: Any, name: str, function: str) -> Any:
    if isinstance(leaf, PerReplica | jax.Array):
        if isinstance(leaf, Tracer):
            raise SettingError(
                f"{name} is being traced by JAX, and tpu.{function} compiles by itself: call it outside of jax.jit, "
                "jax.grad and jax.vmap"
            )
        return leaf
    if isinstance(leaf, keras.Variable):
        return leaf  # `strategy.run` raises an error that says what to do with it.
    array = np.asarray(leaf)
    if array.dtype.kind not in _NUMBERS:
        kind = _TYPE_NAMES.get(array.dtype.kind, str(array.dtype))
        raise SettingTypeError(
            f"{name} holds {kind}, which is not a supported TPU infeed type. Supported types are: "
            f"{', '.join(SUPPORTED)}. Turn its values into numbers first, for example strings with "
            "np.unique(..., return_inverse=True) or keras.layers.StringLookup"
        )
    return leaf if isinstance(leaf, np.ndarray | numbers.Number) and not isinstance(leaf, bool) else array


def _kind(inputs: list[Any]) -> tuple[Any, str]:
    """Return the properties that all replicas must share: the tree of the inputs, and the text of shapes and types."""
    leaves, tree = jax.tree.flatten(inputs)
    dtypes = [jax.dtypes.canonicalize_dtype(np.result_type(leaf)) for leaf in leaves]
    forms = [f"{dtype}{list(np.shape(leaf))}" for dtype, leaf in zip(dtypes, leaves, strict=True)]
    return tree, ", ".join(forms) or "no inputs"


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


_KEPT: dict[System, TPUStrategy] = {}


def cores_of(num_shards: int | None) -> TPUStrategy:
    """Return the strategy of the cores that a call runs on.

    Args:
        num_shards: number of cores, the first ones of the system; None is all.

    Raises:
        SettingError: `num_shards` is not a positive integer, or exceeds the number of cores.
    """
    if num_shards is not None and not (_is_integer(num_shards) and num_shards >= 1):
        raise SettingError(f"num_shards must be a positive integer, or None for all cores, not {num_shards!r}")
    strategy = in_use()
    cores = strategy.num_replicas_in_sync
    if num_shards is not None and num_shards > cores:
        raise SettingError(
            f"num_shards is {num_shards}, and {strategy!r} has {cores} core{'s' * (cores > 1)}: leave num_shards out "
            f'to use them all, or start with tpu.connect("virtual", cores={num_shards})'
        )
    return strategy.part(cores if num_shards is None else int(num_shards))


def in_use() -> TPUStrategy:
    """Return the strategy in scope, or else the one kept for the system initialised or used last."""
    strategy = CURRENT.get()
    if strategy is not None:
        return strategy
    system = current_system() or connect().system
    if system not in _KEPT:
        _KEPT[system] = TPUStrategy(TPUClusterResolver.from_address(system.address))
        system.on_shutdown(lambda: _forget(system))
    running_system(system.address)
    return _KEPT[system]


def refuse_nested(name: str) -> None:
    """Reject a low-level call inside of another one, or inside `strategy.run`.

    Raises:
        StrategyError: the call is nested.
    """
    if current_replica() is not None:
        raise StrategyError(
            f"TPU computations cannot be nested: tpu.{name} was called in a function that already runs on the cores. "
            "Call the inner function directly"
        )


def _forget(system: System) -> None:
    _KEPT.pop(system, None)
