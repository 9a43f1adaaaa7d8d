"""An LSTM that XLA's CPU compiler runs fast, at the hook that Keras has for a backend's own LSTM.

Idea: `recurrence` has the arithmetic and its gradient. This file adds the options of Keras: masks, reversed sequences,
and the outputs of all steps or of the last one.

Rule: an option that is not supported here raises NotImplementedError, and Keras uses its own implementation. The gates
are in Keras's order: input, forget, candidate, output.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from anytpu import _keras
from anytpu.engine.foreign import foreign_kernels
from anytpu.engine.foreign_lstm import foreign_passes
from anytpu.engine.recurrence import XLA, Passes

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
    """Run an LSTM over a sequence: what Keras calls `backend.lstm`.

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
        return_sequences: whether the outputs of all steps are wanted.
        go_backwards: whether the sequence is read from its end; outputs come in the order in which they were computed.
        unroll: must be False.
        zero_output_for_mask: whether the output of a skipped step is 0 rather than the output before it.

    Returns:
        The last output `(batch, units)`; all outputs `(batch, time, units)`, or the last one only without
        `return_sequences`; and the last hidden and cell state.

    Raises:
        NotImplementedError: not a case for this implementation; Keras then uses its own.
    """
    kernel, recurrent_kernel, bias = map(_keras.array_of, (kernel, recurrent_kernel, bias))
    weights = kernel, recurrent_kernel, jnp.zeros_like(kernel[0]) if bias is None else bias
    start = initial_state_h, initial_state_c
    if unroll or not _are_default(activation, recurrent_activation) or not _fits((inputs, *start, *weights)):
        raise NotImplementedError
    if passes(inputs.dtype) is XLA and not is_faster(len(inputs), len(recurrent_kernel)):
        raise NotImplementedError
    inputs, mask = _ordered(jnp.asarray(inputs), go_backwards), _ordered(mask, go_backwards)
    ran: Any = run(inputs, start, weights, mask, return_sequences)
    every, last = ran
    every = last[0][:, None] if every is None else every
    if zero_output_for_mask and mask is not None:
        every = jnp.where(mask[:, -every.shape[1] :, None].astype(bool), every, 0)
    return every[:, -1], every, list(last)


def is_faster(batch: int, units: int) -> bool:
    """Say whether XLA runs this as fast as Keras's own at least: all but large batches of very few units.

    Example:
        >>> is_faster(64, 100), is_faster(256, 32)
        (True, False)
    """
    return batch < 8 * units


def _are_default(activation: Any, recurrent_activation: Any) -> bool:
    import keras

    return activation is keras.activations.tanh and recurrent_activation is keras.activations.sigmoid


def _fits(arrays: tuple[Array, ...]) -> bool:
    """Say whether all have one dtype, float32 or float64, and there is anything to compute."""
    dtypes = {jnp.dtype(one.dtype) for one in arrays}
    return dtypes in ({jnp.dtype("float32")}, {jnp.dtype("float64")}) and all(one.size for one in arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def run(inputs: Array, start: State, weights: Weights, mask: Array | None, every: bool) -> tuple[Array | None, State]:
    """Run an LSTM over `(batch, time, features)`.

    Args:
        inputs: what it reads, in this order.
        start: the state before the first step.
        weights: kernel, recurrent kernel and bias.
        mask: `(batch, time)`, False where the state stays as it is; None where it never does.
        every: whether the hidden states of all steps are returned.

    Returns:
        The hidden states `(batch, time, units)` or None, and the last state.
    """
    return _forward(inputs, start, weights, mask, every, keeps=False)[0]


def _forward(
    inputs: Array, start: State, weights: Weights, mask: Array | None, every: bool, keeps: bool = True
) -> tuple[Any, Any]:
    kernel, recurrent, bias = weights
    mask = jnp.ones((len(inputs), 0), bool) if mask is None else mask.astype(bool)
    pass_ = passes(inputs.dtype).forward
    hidden, cell, states, *kept = pass_(inputs, *start, mask, kernel, bias, recurrent, every=every, keeps=keeps)
    return (states if every else None, (hidden, cell)), (weights, kept, mask)


def _backward(every: bool, for_it: Any, gradient: tuple[Array | None, State]) -> tuple[Array, State, Weights, None]:
    outer, last = gradient
    (kernel, recurrent, _), kept, mask = for_it
    outer = jnp.zeros((len(last[0]), 0, last[0].shape[1]), last[0].dtype) if outer is None else outer
    used = passes(kernel.dtype)
    inputs, hidden, cell, slopes = used.backward(*last, outer, mask, *kept[-3:], kernel, recurrent)
    (totals,) = used.weights(kept[0], slopes, replicas=1)
    total, features = totals[0], len(kernel)
    return inputs, (hidden, cell), (total[:features], total[features + 1 :], total[features]), None


run.defvjp(_forward, _backward)


def passes(dtype: Any) -> Passes:
    """Return the passes for a dtype: foreign ones for float32, where there are any."""
    foreign = foreign_kernels() if jnp.dtype(dtype) == jnp.float32 else None
    return XLA if foreign is None else foreign_passes(foreign)


def _ordered(sequence: Any, go_backwards: bool) -> Any:
    """Return `(batch, time, ...)` in the order in which it is read; None for none."""
    return jnp.flip(sequence, 1) if go_backwards and sequence is not None else sequence
