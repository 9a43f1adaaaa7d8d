"""Small products with a vector as XLA's CPU compiler runs them fast: as sums.

Idea: a matrix product is a call of a library to XLA:CPU, which nothing is fused with. Where one side is a vector and
all of it a thousand multiplications, the call takes longer than the arithmetic: a training step of a small network,
one example at a time, takes half as long with sums, which XLA fuses with what is around them.

Rule: shapes alone decide. Batched products and half precision stay as they are.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array

MOST_FLOPS = 5 * 256
"""The most multiplications that are written as a sum: with more, the library is up to ten times faster."""


def is_small(left: Any, right: Any, parameters: dict[str, Any]) -> bool:
    """Say whether a product is one that sums are faster for.

    Args:
        left: the left operand, or anything with its shape and dtype.
        right: the right operand, likewise.
        parameters: those of `jax.lax.dot_general_p`.
    """
    (over_left, over_right), (batch, _) = parameters["dimension_numbers"]
    if batch or left.dtype != right.dtype or left.dtype not in (jnp.float32, jnp.float64):
        return False
    wanted = parameters["preferred_element_type"]
    if wanted is not None and wanted != left.dtype:
        return False
    summed = math.prod(left.shape[axis] for axis in over_left)
    rows = math.prod(left.shape) // max(1, summed)
    columns = math.prod(right.shape[axis] for axis in range(len(right.shape)) if axis not in over_right)
    return min(rows, columns, summed) == 1 and 0 < rows * columns * summed <= MOST_FLOPS


def as_sums(left: Array, right: Array, **parameters: Any) -> Array:
    """Compute what `jax.lax.dot_general_p` computes with these parameters: multiply, then sum."""
    (over_left, over_right), _ = parameters["dimension_numbers"]
    free_left = [axis for axis in range(left.ndim) if axis not in over_left]
    free_right = [axis for axis in range(right.ndim) if axis not in over_right]
    left = jnp.transpose(left, (*over_left, *free_left))
    right = jnp.transpose(right, (*over_right, *free_right))
    left = left.reshape(left.shape + (1,) * len(free_right))
    summed = right.shape[: len(over_right)]
    right = right.reshape(summed + (1,) * len(free_left) + right.shape[len(over_right) :])
    return jnp.sum(left * right, range(len(summed)))
