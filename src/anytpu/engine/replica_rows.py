"""`RowFunction`: a function of independent batch rows, called once for the rows of all replicas.

Idea: replicas that share weights differ in their rows only. JAX's rules for `vmap` batch each operation of a function,
so a loop of small matrix products becomes a loop of batched, smaller ones. Here the rows of all replicas are
concatenated, and the function is called once with more rows.

Rule: replicas with different weights are computed separately. A foreign function, which JAX cannot differentiate, has a
plain function with the same results for derivatives of higher order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.interpreters import batching

from anytpu.engine.function_primitives import function_primitive


@dataclasses.dataclass(frozen=True)
class RowFunction:
    """A function of batch rows.

    A setting `replicas` is the number of equal groups of rows. A result that is a gradient of weights has one entry for
    each group in place of its rows.

    Attributes:
        compute: takes arrays and settings, and returns a sequence of arrays.
        axes: index of the row axis of each operand; None for weights, which all rows share.
        results: index of the row axis of each result.
        plain: computes the same in JAX's own operations.
    """

    compute: Callable[..., Sequence[Array]]
    axes: tuple[int | None, ...]
    results: tuple[int, ...]
    plain: Callable[..., Sequence[Array]]

    def __call__(self, *operands: Array, **settings: Any) -> list[Array]:
        """Compute the results."""
        return over_rows_p.bind(*operands, function=self, settings=tuple(sorted(settings.items())))


def _compute(*operands: Any, function: RowFunction, settings: tuple) -> list[Any]:
    return list(function.compute(*operands, **dict(settings)))


over_rows_p = function_primitive("over_rows", _compute)


def _batch(operands: Any, dims: Any, *, function: RowFunction, settings: tuple) -> Any:
    replicas = next(operand.shape[dim] for operand, dim in zip(operands, dims, strict=True) if dim is not None)
    # 1. Replicas with different weights cannot share a call.
    if any(axis is None and dim is not None for axis, dim in zip(function.axes, dims, strict=True)):
        return _compute_each(operands, dims, function, settings), [0] * len(function.results)
    # 2. Fold the replicas into the rows, and call the function once.
    folded = [_fold(*operand, replicas) for operand in zip(operands, dims, function.axes, strict=True)]
    joint_settings = dict(settings)
    # The gradients of shared weights stay separate for each replica.
    if "replicas" in joint_settings:
        joint_settings["replicas"] *= replicas
    results = zip(function(*folded, **joint_settings), function.results, strict=True)
    return [_split(*result, replicas) for result in results], function.results


def _compute_each(operands: Any, dims: Any, function: RowFunction, settings: tuple) -> list[Any]:
    """Compute each replica separately: in one loop if the function is foreign, else as JAX batches its operations."""
    if function.compute is function.plain:
        return jax.vmap(lambda *arrays: list(function.plain(*arrays, **dict(settings))), dims)(*operands)
    pairs = zip(operands, dims, strict=True)
    mapped = [None if dim is None else jnp.moveaxis(operand, dim, 0) for operand, dim in pairs]

    def compute_replica(parts: Any) -> list[Any]:
        arrays = [operand if part is None else part for operand, part in zip(operands, parts, strict=True)]
        return function(*arrays, **dict(settings))

    return lax.map(compute_replica, mapped)


def _fold(array: Any, dim: int | None, axis: int | None, replicas: int) -> Any:
    """Concatenate the rows of all replicas.

    Args:
        array: an operand under `vmap`.
        dim: index of its replica axis; None if all replicas have the same array.
        axis: index of its row axis without the replica axis; None for weights.
        replicas: number of replicas.
    """
    if axis is None:
        return array
    if dim is None:
        shape = *array.shape[:axis], replicas, *array.shape[axis:]
        array = jnp.broadcast_to(jnp.expand_dims(array, axis), shape)
    else:
        array = jnp.moveaxis(array, dim, axis)
    rows = replicas * array.shape[axis + 1]
    return array.reshape(*array.shape[:axis], rows, *array.shape[axis + 2 :])


def _split(array: Any, axis: int, replicas: int) -> Any:
    """Split the row axis into a replica axis and a row axis."""
    return array.reshape(*array.shape[:axis], replicas, array.shape[axis] // replicas, *array.shape[axis + 1 :])


batching.primitive_batchers[over_rows_p] = _batch
