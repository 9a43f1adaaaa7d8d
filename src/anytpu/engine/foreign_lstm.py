"""The two passes of an LSTM by foreign kernels, and the same in JAX operations for derivatives of higher order.

Idea: foreign kernels keep the activated gates, with time as the first axis; `recurrence` keeps tangents, with the batch
as the last axis. The residuals of one are converted to those of the other.

Rule: the plain functions return what the kernels do; tests compare them.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import jax.numpy as jnp
from jax import Array

from anytpu.engine import recurrence
from anytpu.engine.recurrence import Passes
from anytpu.engine.replica_rows import RowFunction


@functools.cache
def foreign_passes(kernels: ModuleType) -> Passes:
    """Return the passes that foreign kernels compute, in float32.

    Args:
        kernels: the module `anytpu_kernels`.
    """

    def weights(rows: Array, slopes: Array, *, replicas: int) -> list[Array]:
        return [kernels.lstm_weights(rows, slopes, replicas=replicas)]

    return Passes(
        RowFunction(kernels.lstm_forward, (0, 0, 0, 0, None, None, None), (0, 0, 0, 1, 1, 1, 1), forward),
        RowFunction(kernels.lstm_backward, (0, 0, 0, 0, 1, 1, 1, None, None), (0, 0, 0, 1), backward),
        RowFunction(weights, (1, 1), (0,), weights_of),
    )


def forward(*operands: Array, every: bool, keeps: bool) -> list[Array]:
    """Compute what `anytpu_kernels.lstm_forward` does."""
    *made, rows, tangents, cells, cell_tangents = recurrence.forward(*operands, every=every, keeps=keeps)
    gates = jnp.stack(recurrence.gates(jnp.moveaxis(tangents, 1, 0)), 1)
    kept = rows, gates.reshape(len(gates), -1, gates.shape[-1]), cells, cell_tangents
    return [*made, *(jnp.swapaxes(one, 1, 2)[: None if keeps else 0] for one in kept)]


def backward(
    hidden: Array,
    cell: Array,
    every: Array,
    mask: Array,
    gates: Array,
    cells: Array,
    tangents: Array,
    kernel: Array,
    recurrent: Array,
) -> list[Array]:
    """Compute what `anytpu_kernels.lstm_backward` does."""
    into, forget, candidate, out = jnp.split(_batch_last(gates), 4, 1)
    of_gates = jnp.stack([2 * into - 1, 2 * forget - 1, candidate, 2 * out - 1], 1)
    kept = of_gates, _batch_last(cells), _batch_last(tangents)
    *made, slopes = recurrence.backward(hidden, cell, every, mask, *kept, kernel, recurrent)
    return [*made, jnp.swapaxes(slopes, 1, 2)]


def weights_of(rows: Array, slopes: Array, **settings: Any) -> list[Array]:
    """Compute what `anytpu_kernels.lstm_weights` does."""
    return recurrence.weights(_batch_last(rows), _batch_last(slopes), **settings)


def _batch_last(array: Array) -> Array:
    return jnp.swapaxes(array, 1, 2)
