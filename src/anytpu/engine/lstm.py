"""An LSTM that XLA's CPU compiler runs fast, at the hook that Keras has for a backend's own LSTM.

Idea: `recurrence` has the arithmetic and its gradient. This file adds the options of Keras: masks, reversed sequences,
and the outputs of all steps or of the last step. The foreign kernels, if any, compute both passes in float32.

Rule: an option that is not supported here raises NotImplementedError, and Keras uses its own implementation. The gates
are in Keras's order: input, forget, candidate, output.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from anytpu import _keras
from anytpu.engine import recurrence
from anytpu.engine.foreign import foreign_kernels
from anytpu.engine.recurrence import XLA, LSTMPasses
from anytpu.engine.replica_rows import RowFunction

Weights = tuple[Array, Array, Array]
"""Kernel `(features, 4 x units)`, recurrent kernel `(units, 4 x units)`, bias `(4 x units,)`."""

State = tuple[Array, Array]
"""Hidden and cell state, `(batch, units)` each."""


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
        return_sequences: whether to return the outputs of all steps.
        go_backwards: whether the sequence is read from its end; outputs have the order of their computation.
        unroll: must be False.
        zero_output_for_mask: whether the output of a skipped step is 0; otherwise it is the output before the step.

    Returns:
        The last output, `(batch, units)`; all outputs, `(batch, time, units)`; and the last hidden and cell state.
        Without `return_sequences` the second result has only the last output, `(batch, 1, units)`.

    Raises:
        NotImplementedError: an argument is not supported; Keras then uses its own implementation.
    """
    kernel, recurrent_kernel, bias = map(_keras.array_of, (kernel, recurrent_kernel, bias))
    weights = kernel, recurrent_kernel, jnp.zeros_like(kernel[0]) if bias is None else bias
    start = initial_state_h, initial_state_c
    if unroll or not _are_default(activation, recurrent_activation) or not _fits((inputs, *start, *weights)):
        raise NotImplementedError
    if passes(inputs.dtype) is XLA and not is_faster(len(inputs), len(recurrent_kernel)):
        raise NotImplementedError
    inputs, mask = _ordered(jnp.asarray(inputs), go_backwards), _ordered(mask, go_backwards)
    result: Any = run(inputs, start, weights, mask, return_sequences)
    every, last = result
    every = last[0][:, None] if every is None else every
    if zero_output_for_mask and mask is not None:
        every = jnp.where(mask[:, -every.shape[1] :, None].astype(bool), every, 0)
    return every[:, -1], every, list(last)


def is_faster(batch: int, units: int) -> bool:
    """Return whether XLA runs this at least as fast as Keras's own: except for large batches of very few units.

    Example:
        >>> is_faster(64, 100), is_faster(256, 32)
        (True, False)
    """
    return batch < 8 * units


def _are_default(activation: Any, recurrent_activation: Any) -> bool:
    import keras

    return activation is keras.activations.tanh and recurrent_activation is keras.activations.sigmoid


def _fits(arrays: tuple[Array, ...]) -> bool:
    """Return whether all arrays have the same dtype, float32 or float64, and none is empty."""
    dtypes = {jnp.dtype(array.dtype) for array in arrays}
    return dtypes in ({jnp.dtype("float32")}, {jnp.dtype("float64")}) and all(array.size for array in arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def run(inputs: Array, start: State, weights: Weights, mask: Array | None, every: bool) -> tuple[Array | None, State]:
    """Run an LSTM over `(batch, time, features)`.

    Args:
        inputs: the sequence, in the order of computation.
        start: the state before the first step.
        weights: kernel, recurrent kernel and bias.
        mask: `(batch, time)`, False where a step does not change the state; None for no mask.
        every: whether to return the hidden states of all steps.

    Returns:
        The hidden states `(batch, time, units)` or None, and the last state.
    """
    return _forward(inputs, start, weights, mask, every, keeps=False)[0]


def _forward(
    inputs: Array, start: State, weights: Weights, mask: Array | None, every: bool, keeps: bool = True
) -> tuple[Any, Any]:
    kernel, recurrent, bias = weights
    mask = jnp.ones((len(inputs), 0), bool) if mask is None else mask.astype(bool)
    run_forward, operands = passes(inputs.dtype).forward, (inputs, *start, mask, kernel, bias, recurrent)
    hidden, cell, states, *residuals = run_forward(*operands, every=every, keeps=keeps)
    return (states if every else None, (hidden, cell)), (weights, residuals, mask)


def _backward(every: bool, kept: Any, gradient: tuple[Array | None, State]) -> tuple[Array, State, Weights, None]:
    outer, last = gradient
    (kernel, recurrent, _), residuals, mask = kept
    outer = jnp.zeros((len(last[0]), 0, last[0].shape[1]), last[0].dtype) if outer is None else outer
    implementation = passes(kernel.dtype)
    inputs, hidden, cell, slopes = implementation.backward(*last, outer, mask, *residuals[-3:], kernel, recurrent)
    (totals,) = implementation.weights(residuals[0], slopes, replicas=1)
    total, features = totals[0], len(kernel)
    return inputs, (hidden, cell), (total[:features], total[features + 1 :], total[features]), None


run.defvjp(_forward, _backward)


def passes(dtype: Any) -> LSTMPasses:
    """Return the passes for a dtype: the foreign passes for float32, if they are installed."""
    foreign = foreign_kernels() if jnp.dtype(dtype) == jnp.float32 else None
    return XLA if foreign is None else foreign_passes(foreign)


def _ordered(sequence: Any, go_backwards: bool) -> Any:
    """Return a sequence `(batch, time, ...)` in the order of computation; None for None."""
    return jnp.flip(sequence, 1) if go_backwards and sequence is not None else sequence


@functools.cache
def foreign_passes(kernels: ModuleType) -> LSTMPasses:
    """Return the passes of the foreign kernels, in float32.

    Their residuals differ from those of `recurrence`: the time is the first axis, not the batch the last, and the gates
    are activated. The plain functions below compute the same in JAX's operations, for derivatives of higher order.

    Args:
        kernels: the module `anytpu_kernels`.
    """

    def weights(rows: Array, slopes: Array, *, replicas: int) -> list[Array]:
        return [kernels.lstm_weights(rows, slopes, replicas=replicas)]

    return LSTMPasses(
        RowFunction(kernels.lstm_forward, (0, 0, 0, 0, None, None, None), (0, 0, 0, 1, 1, 1, 1), _plain_forward),
        RowFunction(kernels.lstm_backward, (0, 0, 0, 0, 1, 1, 1, None, None), (0, 0, 0, 1), _plain_backward),
        RowFunction(weights, (1, 1), (0,), _plain_weights),
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
