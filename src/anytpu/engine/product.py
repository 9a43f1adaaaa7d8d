"""Small products with a vector, lowered as sums, which are faster on XLA:CPU.

Idea: XLA:CPU runs a matrix product as a library call, and fuses nothing with it. If one operand is a vector and the
product has about a thousand multiplications, the call takes longer than the arithmetic. XLA fuses a sum with the
operations around it. So a training step of a small network, one example at a time, takes half as long with sums.

Rule: the decision depends on shapes and dtypes only. Batched products and half precision are unchanged.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array

MAX_MULTIPLICATIONS = 5 * 256
"""Maximum number of multiplications of a product lowered as a sum; above it the library is up to ten times faster."""


def is_small(left: Any, right: Any, parameters: dict[str, Any]) -> bool:
    """Return whether a product is faster as a sum.

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


def as_sums(left: Array, right: Array, **parameters: Any) -> Array:
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
