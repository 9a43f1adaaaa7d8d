"""Calls that the LSTM and the GRU share: a pass over a sequence, and the gradient of weights that all steps share."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import Array

from anytpu_kernels.library import load


def run_pass(name: str, shapes: list[tuple[int, ...]], *operands: Array, **attributes: Any) -> list[Array]:
    """Call a kernel of the library. Under `vmap` each part is a call.

    Args:
        name: XLA's name of the kernel.
        shapes: shape of each result.
        *operands: arrays of float32, and masks.
        **attributes: integers that the kernel reads beside its operands.
    """
    load()
    results = [jax.ShapeDtypeStruct(shape, operands[0].dtype) for shape in shapes]
    numbers = {key: np.int64(number) for key, number in attributes.items()}
    return list(jax.ffi.ffi_call(name, results, vmap_method="sequential")(*operands, **numbers))


def sequence_weights(
    rows: Array, slopes: Array, shape: tuple[int, int, int], *, first_row: int = 0, first_column: int = 0
) -> Array:
    """Return sums over time and batch of the outer products of rows and slopes.

    Args:
        rows: `(time, batch, ...)`, the operands of a step's product.
        slopes: `(time, batch, ...)`, the gradients of that product.
        shape: shape of the result. Its first axis has one sum for each equal part of the batch.
        first_row: index of the first number in a row of `rows` to be read.
        first_column: index of the first number in a row of `slopes` to be read.
    """
    attributes = {"first_row": first_row, "first_column": first_column}
    return run_pass("anytpu_sequence_weights", [shape], rows, slopes, **attributes)[0]
