"""Matrix products in forms that XLA's CPU compiler runs fast; the results are the same.

Idea: a product with a vector of about a thousand multiplications is computed as a sum. XLA:CPU runs a matrix product as
a library call, and fuses nothing with it; the call takes longer than the arithmetic. XLA fuses a sum with the
operations around it. So a training step of a small network on one example takes half as long.

The gradient of a layer's weights sums over all axes of the rows, such as batch and time. XLA:CPU moves these axes
behind the others, and copies an operand for it, element by element. With the axes merged into one it is a product of a
transposed matrix, which the library computes without a copy.

Rule: the functions decide from shapes and parameters alone. Measured in docs/decisions/0004.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

_FLOATS = (jnp.float32, jnp.float64, jnp.bfloat16, jnp.float16)
"""Types whose gradients a step computes. XLA reads integers of four bits wrongly after a reshape."""

MAX_MULTIPLICATIONS = 5 * 256
"""Maximum number of multiplications of a product computed as a sum; above it the library is up to ten times faster."""


def is_small(left: Any, right: Any, parameters: dict[str, Any]) -> bool:
    """Return whether a product is faster as a sum. Batched products and half precision are not.

    Args:
        left: left operand, or an object with its shape and dtype.
        right: right operand, or an object with its shape and dtype.
        parameters: parameters of `jax.lax.dot_general_p`.
    """
    (over_left, over_right), (batch, _) = parameters["dimension_numbers"]
    if batch or left.dtype != right.dtype or left.dtype not in (jnp.float32, jnp.float64):
        return False
    result_dtype = parameters["preferred_element_type"]
    if result_dtype is not None and result_dtype != left.dtype:
        return False
    depth = math.prod(left.shape[axis] for axis in over_left)
    rows = math.prod(left.shape) // max(1, depth)
    columns = math.prod(right.shape[axis] for axis in range(len(right.shape)) if axis not in over_right)
    return min(rows, columns, depth) == 1 and 0 < rows * columns * depth <= MAX_MULTIPLICATIONS


def as_sum(left: Array, right: Array, **parameters: Any) -> Array:
    """Compute `jax.lax.dot_general_p` with these parameters by a broadcast multiplication and a sum."""
    (over_left, over_right), _ = parameters["dimension_numbers"]
    free_left = [axis for axis in range(left.ndim) if axis not in over_left]
    free_right = [axis for axis in range(right.ndim) if axis not in over_right]
    # Contracted axes first, then the free axes of the left, then those of the right.
    left = jnp.transpose(left, (*over_left, *free_left))
    right = jnp.transpose(right, (*over_right, *free_right))
    left = left.reshape(left.shape + (1,) * len(free_right))
    contracted = right.shape[: len(over_right)]
    right = right.reshape(contracted + (1,) * len(free_left) + right.shape[len(over_right) :])
    return jnp.sum(left * right, range(len(contracted)))


def has_leading_sums(operands: Sequence[Any], parameters: dict[str, Any]) -> bool:
    """Return whether a product of floats sums over several axes that come first in both, behind the batch axes.

    Args:
        operands: the two operands, or objects with their dtypes.
        parameters: parameters of `jax.lax.dot_general_p`.
    """
    (over_left, over_right), (batch_left, batch_right) = parameters["dimension_numbers"]
    leading = tuple(range(len(batch_left) + len(over_left)))
    is_leading = (*batch_left, *over_left) == (*batch_right, *over_right) == leading
    specs = [getattr(getattr(x, "sharding", None), "spec", ()) for x in operands]  # Of an explicit mesh.
    is_whole = parameters.get("out_sharding") is None and not any(map(any, specs))
    return len(over_left) > 1 and is_leading and is_whole and all(x.dtype in _FLOATS for x in operands)


def as_matrices(left: Array, right: Array, **parameters: Any) -> Array:
    """Compute `jax.lax.dot_general_p`, for which `has_leading_sums` is true, as a product of matrices.

    Each has three axes: the batch axes in one, the summed axes in one, and all others in one.
    """
    (over, _), (batch, _) = parameters["dimension_numbers"]
    outer, kept = left.shape[: len(batch)], len(batch) + len(over)
    sizes = math.prod(outer), math.prod(left.shape[len(batch) : kept])
    free = [operand.shape[kept:] for operand in (left, right)]
    matrices = [x.reshape(*sizes, math.prod(own)) for x, own in zip((left, right), free, strict=True)]
    if not batch:
        matrices = [matrix[0] for matrix in matrices]
    axis, batched = ((1,), (0,)) if batch else ((0,), ())
    parameters["dimension_numbers"] = (axis, axis), (batched, batched)
    product = lax.dot_general(matrices[0], matrices[1], **parameters)
    return product.reshape(*outer, *free[0], *free[1])
