"""An LSTM that XLA's CPU compiler runs fast, at the hook that Keras has for a backend's own LSTM.

Idea: `recurrence` has the passes, and `sequence` the options of Keras. The foreign kernels, if any, compute the passes
in float32.

Rule: an option that is not supported here raises NotImplementedError, and Keras uses its own implementation. The gates
are in Keras's order: input, forget, candidate, output.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import jax.numpy as jnp
from jax import Array

from anytpu import _keras
from anytpu.engine import recurrence
from anytpu.engine.foreign import foreign_kernels
from anytpu.engine.recurrence import XLA
from anytpu.engine.replica_rows import RowFunction
from anytpu.engine.sequence import Passes, fits, has_default_activations, run_layer


def lstm(
    inputs: Array,
    initial_state_h: Array,
    initial_state_c: Array,
    mask: Array | None,
    kernel: Any,
    recurrent_kernel: Any,
    bias: Any,
    activation: Any,
    recurrent_activation: Any,
    return_sequences: bool = False,
    go_backwards: bool = False,
    unroll: bool = False,
    zero_output_for_mask: bool = False,
) -> tuple[Array, Array, list[Array]]:
    """Run an LSTM over a sequence. This is the function that Keras calls as `backend.lstm`.

    Args:
        inputs: `(batch, time, features)`.
        initial_state_h: `(batch, units)`.
        initial_state_c: `(batch, units)`.
        mask: `(batch, time)`, False where a step is skipped; None skips nothing.
        kernel: `(features, 4 x units)`.
        recurrent_kernel: `(units, 4 x units)`.
        bias: `(4 x units,)`, or None for no bias.
        activation: must be tanh.
        recurrent_activation: must be sigmoid.
        return_sequences: as in `run_layer`.
        go_backwards: as in `run_layer`.
        unroll: must be False.
        zero_output_for_mask: as in `run_layer`.

    Returns:
        The results of `run_layer`.

    Raises:
        NotImplementedError: an argument is not supported; Keras then uses its own implementation.
    """
    kernel, recurrent_kernel, bias = map(_keras.array_of, (kernel, recurrent_kernel, bias))
    weights = kernel, jnp.zeros_like(kernel[0]) if bias is None else bias, recurrent_kernel
    start = initial_state_h, initial_state_c
    if unroll or not has_default_activations(activation, recurrent_activation) or not fits((inputs, *start, *weights)):
        raise NotImplementedError
    implementation = passes(inputs.dtype)
    if implementation is XLA and not is_faster(len(inputs), len(recurrent_kernel)):
        raise NotImplementedError
    options = return_sequences, go_backwards, zero_output_for_mask
    return run_layer(implementation, inputs, start, weights, mask, *options)


def is_faster(batch: int, units: int) -> bool:
    """Return whether XLA runs this at least as fast as Keras's own: except for large batches of very few units.

    Example:
        >>> is_faster(64, 100), is_faster(256, 32)
        (True, False)
    """
    return batch < 8 * units


def passes(dtype: Any) -> Passes:
    """Return the passes for a dtype: the foreign passes for float32, if they are installed."""
    foreign = foreign_kernels() if jnp.dtype(dtype) == jnp.float32 else None
    return XLA if foreign is None else foreign_passes(foreign)


@functools.cache
def foreign_passes(kernels: ModuleType) -> Passes:
    """Return the passes of the foreign kernels, in float32.

    Their residuals differ from those of `recurrence`: the time is the first axis, not the batch the last, and the gates
    are activated. The plain functions below compute the same in JAX's operations, for derivatives of higher order.

    Args:
        kernels: the module `anytpu_kernels`.
    """
    return Passes(
        RowFunction(kernels.lstm_forward, (0, 0, 0, 0, None, None, None), (0, 0, 0, 1, 1, 1, 1), _plain_forward),
        RowFunction(kernels.lstm_backward, (0, 0, 0, 0, 1, 1, 1, None, None), (0, 0, 0, 1), _plain_backward),
        RowFunction(kernels.lstm_weights, (1, 1), (0, 0, 0), _plain_weights),
        first_read=1,
    )


def _plain_forward(*operands: Array, every: bool, keeps: bool) -> list[Array]:
    """Compute `anytpu_kernels.lstm_forward`."""
    *results, columns, tanh_gates, cells, tanh_cells = recurrence.forward(*operands, every=every, keeps=keeps)
    gates = jnp.stack(recurrence.gates(jnp.moveaxis(tanh_gates, 1, 0)), 1)
    residuals = columns, gates.reshape(len(gates), -1, gates.shape[-1]), cells, tanh_cells
    return [*results, *(jnp.swapaxes(residual, 1, 2)[: None if keeps else 0] for residual in residuals)]


def _plain_backward(
    hidden: Array,
    cell: Array,
    every: Array,
    mask: Array,
    gates: Array,
    cells: Array,
    tanh_cells: Array,
    kernel: Array,
    recurrent: Array,
) -> list[Array]:
    """Compute `anytpu_kernels.lstm_backward`."""
    update, forget, candidate, output = jnp.split(_batch_last(gates), 4, 1)
    tanh_gates = jnp.stack([2 * update - 1, 2 * forget - 1, candidate, 2 * output - 1], 1)
    residuals = tanh_gates, _batch_last(cells), _batch_last(tanh_cells)
    *results, slopes = recurrence.backward(hidden, cell, every, mask, *residuals, kernel, recurrent)
    return [*results, jnp.swapaxes(slopes, 1, 2)]


def _plain_weights(rows: Array, slopes: Array, *, replicas: int) -> list[Array]:
    """Compute `anytpu_kernels.lstm_weights`."""
    return recurrence.weights(_batch_last(rows), _batch_last(slopes), replicas=replicas)


def _batch_last(array: Array) -> Array:
    return jnp.swapaxes(array, 1, 2)
