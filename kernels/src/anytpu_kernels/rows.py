"""Sums of the rows of an embedding table, and the update in place of the rows that a batch uses.

Idea: a bag is a list of ids with weights. Both kernels request rows from memory before they use them. The update sorts
the ids, so each row is read and written once, and the optimizer's formula is applied while it is in the cache.

Rule: float32 and int32. An id outside of the table stands for no row; so does an id with a weight of 0 in an update.
Results do not vary between calls, nor with the number of threads. `vmap` calls `row_sums` for each part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax import Array

from anytpu_kernels.library import load

RULES = {"sgd": 0, "momentum": 1, "adagrad": 2, "adam": 3, "ftrl": 4}
"""The rules of `row_update`, and the number of each in the library."""


def row_sums(rows: Array, ids: Array, weights: Array) -> Array:
    """Return the weighted sum of the rows of each bag, `(bags, width)`.

    Args:
        rows: the table, `(rows, width)`.
        ids: row numbers, `(bags, size)`, int32.
        weights: the weight of each row, `(bags, size)`.
    """
    load()
    result = jax.ShapeDtypeStruct((ids.shape[0], rows.shape[1]), rows.dtype)
    return jax.ffi.ffi_call("anytpu_row_sums", result, vmap_method="sequential")(rows, ids, weights)


def row_update(
    arrays: Sequence[Array],
    rate: Array,
    features: Sequence[tuple[Array, Array, Array]],
    *,
    rule: str,
    numbers: Sequence[float],
    limit: float = math.inf,
) -> list[Array]:
    """Return a table and its slots after one step. XLA reuses the memory of the operands if they are used no more.

    Args:
        arrays: the table, `(rows, width)`, and its slots, of the same shape.
        rate: the learning rate, a scalar; for "adam" corrected for the bias of both means.
        features: ids `(bags, size)`, weights `(bags, size)` and gradients of the sums `(bags, width)`, of each feature.
        rule: the formula, one of `RULES`.
        numbers: numbers of the formula: none for "sgd"; decay, and 1 for Nesterov's form, for "momentum"; epsilon for
            "adagrad"; 1 - beta_1, 1 - beta_2 and epsilon for "adam"; power, L1, L2, L2 shrinkage and beta for "ftrl".
        limit: maximum absolute value of a summed gradient.
    """
    load()
    results = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    operands = [*arrays, rate, *(array for feature in features for array in feature)]
    call = jax.ffi.ffi_call("anytpu_row_update", results, input_output_aliases={i: i for i in range(len(arrays))})
    return list(call(*operands, rule=np.int64(RULES[rule]), numbers=np.array([limit, *numbers], "float32")))
