"""Sums over the rows of a matrix for each column, as batch normalization and its gradient need them.

Idea: a large array is read from memory once for each call. The elementwise operations of batch normalization stay with
XLA, which fuses them with the operations around them.

Rule: float32, at least one row. Under `vmap` each matrix is computed separately.
"""

from __future__ import annotations

import jax
from jax import Array

from anytpu_kernels.library import load


def column_moments(matrix: Array) -> list[Array]:
    """Return the mean and the variance of each column.

    Args:
        matrix: `(rows, columns)`.

    Returns:
        Two arrays `(columns,)`. The variance is the mean of squares around the mean.
    """
    return _call("anytpu_column_moments", matrix)


def column_products(gradient: Array, matrix: Array, center: Array) -> list[Array]:
    """Return the column sums of `gradient` and of `gradient * (matrix - center)`.

    Args:
        gradient: `(rows, columns)`.
        matrix: `(rows, columns)`.
        center: `(columns,)`.

    Returns:
        Two arrays `(columns,)`.
    """
    return _call("anytpu_column_products", gradient, matrix, center)


def _call(name: str, *operands: Array) -> list[Array]:
    load()
    result = jax.ShapeDtypeStruct(operands[0].shape[1:], operands[0].dtype)
    return list(jax.ffi.ffi_call(name, [result] * 2, vmap_method="broadcast_all")(*operands))
