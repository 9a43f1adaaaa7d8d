"""`shard`, `batch_parallel`, `replicate` and `rewrite`: run a function of arrays on the cores.

Idea: this is the TPU's first interface. Each of the four distributes its inputs over some cores, runs the function
there as `strategy.run` does, and joins the outputs. So a function is compiled once for its code and its shapes,
regardless of the caller.

Rule: the result is a list, as in TensorFlow 1: `tpu.rewrite(f, [x])[0]` is the value of an `f` that returns a single
value. The arrays in it stay on the cores until they are read.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu import _by_name
from anytpu._calls import check_arguments, explain_arguments, users_stacklevel
from anytpu.errors import SettingError
from anytpu.migrate.low_level.arguments import (
    checked_axes,
    checked_inputs,
    checked_replicas,
    checked_split_axis,
    cores_of,
    refuse_nested,
)
from anytpu.program.program import ROWS
from anytpu.strategy.per_replica import PerReplica, is_per_replica

_SEARCH = (
    "tpu.shard(model, tpu=...) is now tpu.find_layouts(model, tpu=...), with the same arguments; the next version "
    "has only the new name"
)


@explain_arguments
def shard(
    computation: Callable,
    inputs: Sequence[Any] | None = None,
    num_shards: int | None = None,
    input_shard_axes: Sequence[int | None] | None = None,
    outputs_from_all_shards: bool | Sequence[bool] = True,
    output_shard_axes: Sequence[int] | None = None,
    **search: Any,
) -> Any:
    """Run a function on every core, each on its shard of the inputs.

    `shard(model, tpu="v5e-8", batch_size=64)` is the former name of `anytpu.find_layouts`, with a warning.

    Args:
        computation: takes one shard of each input. It may use `cross_replica_sum`, `CrossShardOptimizer`, Keras models
            and optimizers, and JAX's collectives over the axis "replica". An array that it closes over is part of its
            code, so another array compiles it again: pass values that change between calls as inputs.
        inputs: a list of arrays, or of trees of arrays; None means no inputs.
        num_shards: number of cores, the first ones of the system; None is all.
        input_shard_axes: the split axis of each input; a None in the list gives every shard the whole input. None
            splits each along axis 0.
        outputs_from_all_shards: for each output, or for all: True joins the outputs of all shards, False takes the
            output of shard 0.
        output_shard_axes: the axis along which each output is joined; None joins along axis 0. Scalars are stacked.
        **search: `tpu` and the other arguments of `find_layouts`.

    Returns:
        `Shardings` with `tpu`. Otherwise a list with one entry for each value that `computation` returns, or None if it
        returns None. A result that is not a list or tuple is a single value.

    Raises:
        SettingError: an argument is invalid, or an input is not divisible by the number of shards.
        StrategyError: called inside a function that already runs on the cores.
        ReplicaError: `computation` returns a value that is not an array.

    Example:
        >>> initialize_system(TPUClusterResolver("virtual", cores=4)).name
        '4 virtual cores'
        >>> sums = lambda x: (x.mean(), cross_replica_sum(x.sum()))
        >>> means, total = shard(sums, [np.arange(8.0)], outputs_from_all_shards=[True, False])
        >>> means.tolist(), float(total)
        ([0.5, 2.5, 4.5, 6.5], 28.0)
    """
    if search:
        check_arguments("shard", inspect.signature(shard), () if "tpu" in search else search, ("tpu",))
        warnings.warn(_SEARCH, FutureWarning, stacklevel=users_stacklevel())
        return _by_name.load("layout search")(computation, **search)
    refuse_nested("shard")
    listed = checked_inputs(inputs, "shard")
    strategy = cores_of(num_shards)
    axes = checked_axes(input_shard_axes, len(listed), "input_shard_axes", "inputs") or [0] * len(listed)
    parts = [
        _split(strategy, tree, axis, f"inputs[{i}]") for i, (tree, axis) in enumerate(zip(listed, axes, strict=True))
    ]
    outputs = _listed(strategy.run(computation, tuple(parts)))
    if outputs is None:
        return None
    from_all = _for_each(outputs_from_all_shards, len(outputs))
    out_axes = checked_axes(output_shard_axes, len(outputs), "output_shard_axes", "outputs") or [0] * len(outputs)
    joined = [axis if is_all else None for axis, is_all in zip(out_axes, from_all, strict=True)]
    return [_join_shards(strategy, tree, axis) for tree, axis in zip(outputs, joined, strict=True)]


@explain_arguments
def batch_parallel(
    computation: Callable, inputs: Sequence[Any] | None = None, num_shards: int | None = None
) -> list[Any] | None:
    """Run a function on every core, each on its rows: `shard` with all inputs split and all outputs joined on axis 0.

    Args, Returns and Raises: those of `shard`.

    Example:
        >>> batch_parallel(lambda x: x * 2, [np.arange(4)], num_shards=2)[0].tolist()
        [0, 2, 4, 6]
    """
    return shard(computation, inputs, num_shards)


@explain_arguments
def replicate(computation: Callable, inputs: Sequence[Sequence[Any]] | None = None) -> list[Any]:
    """Run a function on several cores, each with its own inputs.

    Args:
        computation: takes one replica's inputs.
        inputs: a list with one list of inputs for each replica, all of the same shapes; None runs it without inputs on
            all cores.

    Returns:
        A list with the outputs of each replica: a list as `shard` returns it, or None.

    Raises:
        SettingError: the replicas' inputs differ in structure, or there are more replicas than cores.
        StrategyError: called inside a function that already runs on the cores.
        ReplicaError: `computation` returns a value that is not an array.

    Example:
        >>> [float(outputs[0]) for outputs in replicate(lambda x, y: x + y, [[1.0, 2.0], [3.0, 4.0]])]
        [3.0, 7.0]
    """
    refuse_nested("replicate")
    replicas = None if inputs is None else checked_replicas(inputs)
    strategy = cores_of(None if replicas is None else len(replicas))
    if replicas is None:
        arguments = ()
    else:
        trees = [tuple(row) for row in replicas]
        arguments = jax.tree.map(lambda *parts: PerReplica(list(parts)), *trees) if len(trees) > 1 else trees[0]
    outputs = _listed(strategy.run(computation, arguments))
    if outputs is None:
        return [None] * strategy.num_replicas_in_sync
    return [_outputs_of(outputs, replica) for replica in range(strategy.num_replicas_in_sync)]


@explain_arguments
def rewrite(computation: Callable, inputs: Sequence[Any] | None = None) -> list[Any] | None:
    """Run a function on one core of the TPU, compiled as a whole.

    Args:
        computation: takes the inputs.
        inputs: a list of arrays, or of trees of arrays; None means no inputs.

    Returns:
        A list as `shard` returns it, or None.

    Raises:
        SettingError: `inputs` is not such a list.
        StrategyError: called inside a function that already runs on the cores.
        ReplicaError: `computation` returns a value that is not an array.

    Example:
        >>> float(rewrite(lambda x: x**2, [3.0])[0])
        9.0
    """
    refuse_nested("rewrite")
    listed = checked_inputs(inputs, "rewrite")
    return _listed(cores_of(1).run(computation, tuple(listed)))


def _listed(outputs: Any) -> list[Any] | None:
    """Return a computation's outputs as a list with one entry for each value. A named tuple is one value."""
    if outputs is None:
        return None
    return list(outputs) if type(outputs) in (list, tuple) else [outputs]


def _for_each(value: Any, count: int) -> list[bool]:
    if isinstance(value, bool):
        return [value] * count
    if not isinstance(value, list | tuple) or len(value) != count:
        raise SettingError(
            f"outputs_from_all_shards must be True, False, or a list with one of them for each of the {count} outputs, "
            f"not {value!r}"
        )
    return [bool(entry) for entry in value]


# Distributing the inputs.


def _split(strategy: Any, tree: Any, axis: int | None, name: str) -> Any:
    """Distribute one input over the shards: split along an axis, or whole on each shard for None."""
    shards = strategy.num_replicas_in_sync
    if axis is None:
        return tree

    def split(path: Any, leaf: Any) -> Any:
        split_axis = checked_split_axis(leaf, axis, shards, name + jax.tree_util.keystr(path))
        if shards == 1 or is_per_replica(leaf):
            return leaf
        if isinstance(leaf, jax.Array):
            stacked = _shards_in_front(leaf, split_axis, shards)
        else:
            stacked = np.array(_moved(np.asarray(leaf), split_axis, shards, np))
        spec = jax.ShapeDtypeStruct(stacked.shape, jax.dtypes.canonicalize_dtype(stacked.dtype))
        return PerReplica.of_handle(strategy.backend, strategy.backend.put(stacked, ROWS), spec)

    return jax.tree_util.tree_map_with_path(split, tree, is_leaf=is_per_replica)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _shards_in_front(leaf: Any, axis: int, shards: int) -> Any:
    return _moved(leaf, axis, shards, jnp)


def _moved(leaf: Any, axis: int, shards: int, library: Any) -> Any:
    shape = leaf.shape
    split = leaf.reshape(*shape[:axis], shards, shape[axis] // shards, *shape[axis + 1 :])
    return library.moveaxis(split, axis, 0)


# Joining the outputs.


def _join_shards(strategy: Any, tree: Any, axis: int | None) -> Any:
    """Make one array of the shards' arrays: joined along an axis, or that of shard 0 for None."""

    def join(leaf: Any) -> Any:
        if not isinstance(leaf, PerReplica):
            return leaf if axis is None or np.ndim(leaf) else leaf.reshape(1)
        array = leaf.shared() if leaf.is_shared else strategy.backend.get(leaf.handle_on(strategy.backend))
        if leaf.is_shared:
            library = jnp if isinstance(array, jax.Array) else np
            array = library.broadcast_to(array, leaf.spec().shape)
        return _joined_on_device(array, axis) if isinstance(array, jax.Array) else _joined(array, axis, np)

    return jax.tree.map(join, tree, is_leaf=is_per_replica)


@functools.partial(jax.jit, static_argnums=1)
def _joined_on_device(stacked: Any, axis: int | None) -> Any:
    return _joined(stacked, axis, jnp)


def _joined(stacked: Any, axis: int | None, library: Any) -> Any:
    if axis is None:
        return stacked[0]
    if stacked.ndim == 1:
        return stacked
    first = axis % (stacked.ndim - 1)
    moved = library.moveaxis(stacked, 0, first)
    shape = moved.shape
    return moved.reshape(*shape[:first], shape[first] * shape[first + 1], *shape[first + 2 :])


def _outputs_of(outputs: list[Any], replica: int) -> list[Any]:
    return jax.tree.map(
        lambda leaf: leaf.values[replica] if isinstance(leaf, PerReplica) else leaf, outputs, is_leaf=is_per_replica
    )
