"""`over_rows`: a function that treats each row of a batch by itself, called once for the rows of all replicas.

Idea: replicas that share weights differ in their rows only. JAX's rules for `vmap` batch each operation of a function,
so a loop of small matrix products becomes a loop of batched, smaller ones. Here the rows of all replicas are
concatenated, and the function is called once with more rows.

Rule: replicas with different weights are computed one by one. A foreign function, which JAX cannot differentiate, names
a plain function with the same results for derivatives of higher order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


@dataclasses.dataclass(frozen=True)
class RowFunction:
    """A function over rows.

    Attributes:
        compute: takes arrays and settings, returns a sequence of arrays.
        axes: of each operand, the axis of rows; None for weights, which all rows share.
        results: of each result, the axis of rows.
        plain: computes the same in JAX's own operations.

    A setting `replicas` is the number of equal groups of rows: a result whose "rows" are gradients of weights has one
    for each.
    """

    compute: Callable[..., Sequence[Array]]
    axes: tuple[int | None, ...]
    results: tuple[int, ...]
    plain: Callable[..., Sequence[Array]]

    def __call__(self, *operands: Array, **settings: Any) -> list[Array]:
        """Compute it."""
        return over_rows_p.bind(*operands, function=self, settings=tuple(sorted(settings.items())))


over_rows_p = Primitive("over_rows")
over_rows_p.multiple_results = True


@over_rows_p.def_impl
def _compute(*operands: Any, function: RowFunction, settings: tuple) -> list[Any]:
    return list(function.compute(*operands, **dict(settings)))


@over_rows_p.def_abstract_eval
def _(*operands: Any, function: RowFunction, settings: tuple) -> list[Any]:
    specs = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in operands]
    results = jax.eval_shape(lambda *arrays: _compute(*arrays, function=function, settings=settings), *specs)
    return [ShapedArray(one.shape, one.dtype) for one in results]


def _differentiated(primals: Any, tangents: Any, *, function: RowFunction, settings: tuple) -> Any:
    made = tuple(ad.instantiate_zeros(one) for one in tangents)
    return jax.jvp(lambda *arrays: list(function.plain(*arrays, **dict(settings))), primals, made)


def _batched(operands: Any, dims: Any, *, function: RowFunction, settings: tuple) -> Any:
    count = next(one.shape[dim] for one, dim in zip(operands, dims, strict=True) if dim is not None)
    if any(axis is None and dim is not None for axis, dim in zip(function.axes, dims, strict=True)):
        return _each(operands, dims, function, settings), [0] * len(function.results)
    folded = [_fold(*one, count) for one in zip(operands, dims, function.axes, strict=True)]
    given = dict(settings)
    if "replicas" in given:
        given["replicas"] *= count
    made = zip(function(*folded, **given), function.results, strict=True)
    split = [_split(*one, count) for one in made]
    return split, function.results


def _each(operands: Any, dims: Any, function: RowFunction, settings: tuple) -> list[Any]:
    """Compute each replica by itself: in one loop if the function is foreign, else as JAX batches its operations."""
    if function.compute is function.plain:
        return jax.vmap(lambda *arrays: list(function.plain(*arrays, **dict(settings))), dims)(*operands)
    mapped = [None if dim is None else jnp.moveaxis(one, dim, 0) for one, dim in zip(operands, dims, strict=True)]

    def one_replica(own: Any) -> list[Any]:
        arrays = [one if part is None else part for one, part in zip(operands, own, strict=True)]
        return function(*arrays, **dict(settings))

    return lax.map(one_replica, mapped)


def _fold(array: Any, dim: int | None, axis: int | None, count: int) -> Any:
    """Put the rows of all replicas one after the other."""
    if axis is None:
        return array
    if dim is None:
        array = jnp.broadcast_to(jnp.expand_dims(array, axis), (*array.shape[:axis], count, *array.shape[axis:]))
    else:
        array = jnp.moveaxis(array, dim, axis)
    rows = count * array.shape[axis + 1]
    return array.reshape(*array.shape[:axis], rows, *array.shape[axis + 2 :])


def _split(array: Any, axis: int, count: int) -> Any:
    """Give the rows of each replica an axis in front of them."""
    return array.reshape(*array.shape[:axis], count, array.shape[axis] // count, *array.shape[axis + 1 :])


ad.primitive_jvps[over_rows_p] = _differentiated
batching.primitive_batchers[over_rows_p] = _batched
mlir.register_lowering(over_rows_p, mlir.lower_fun(_compute, multiple_results=True))
