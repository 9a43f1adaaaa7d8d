"""A recurrent layer over a sequence: the options of Keras, and the gradient, for any passes.

Idea: an implementation has three `Passes`: forward, backward, and the weights' gradient. They are functions of batch
rows, so replicas that share weights are a single call (`replica_rows`). This file adds what all recurrent layers have
in common: masks, reversed sequences, and the outputs of all steps or of the last step.

Rule: the functions that Keras calls are in `lstm` and `gru`. They raise NotImplementedError for an option that is not
supported, and Keras uses its own implementation.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from anytpu.engine.replica_rows import RowFunction

Weights = tuple[Array, Array, Array]
"""Kernel, bias and recurrent kernel."""

State = tuple[Array, ...]
"""The arrays of the state, `(batch, units)` each; the first is the hidden state."""


@dataclasses.dataclass(frozen=True)
class Passes:
    """The passes of one implementation of a recurrent layer.

    Attributes:
        forward: takes inputs, state, mask and weights. It returns the last state, the hidden states of all steps, and
            residuals.
        backward: takes the gradients of the last state and of all hidden states, the mask, residuals, kernel and
            recurrent kernel. It returns the gradients of inputs and state, and the slopes of the products.
        weights: takes the first residual and the slopes. It returns the gradients of the weights for each replica.
        first_read: index of the first residual that `backward` reads.
    """

    forward: RowFunction
    backward: RowFunction
    weights: RowFunction
    first_read: int


def run_layer(
    passes: Passes,
    inputs: Array,
    start: State,
    weights: Weights,
    mask: Any,
    return_sequences: bool,
    go_backwards: bool,
    zero_output_for_mask: bool,
) -> tuple[Array, Array, list[Array]]:
    """Run a recurrent layer with the options of Keras.

    Args:
        passes: the implementation.
        inputs: `(batch, time, features)`.
        start: the state before the first step.
        weights: kernel, bias and recurrent kernel.
        mask: `(batch, time)`, False where a step is skipped; None skips nothing.
        return_sequences: whether to return the outputs of all steps.
        go_backwards: whether the sequence is read from its end; outputs have the order of their computation.
        zero_output_for_mask: whether the output of a skipped step is 0; otherwise it is the output before the step.

    Returns:
        The last output, `(batch, units)`; all outputs, `(batch, time, units)`; and the arrays of the last state.
        Without `return_sequences` the second result has only the last output, `(batch, 1, units)`.
    """
    inputs, mask = _ordered(jnp.asarray(inputs), go_backwards), _ordered(mask, go_backwards)
    result: Any = run(passes, inputs, start, weights, mask, return_sequences)
    every, last = result
    every = last[0][:, None] if every is None else every
    if zero_output_for_mask and mask is not None:
        every = jnp.where(mask[:, -every.shape[1] :, None].astype(bool), every, 0)
    return every[:, -1], every, list(last)


def has_default_activations(activation: Any, recurrent_activation: Any) -> bool:
    """Return whether a layer has the activations of Keras's LSTM and GRU: tanh and sigmoid."""
    import keras

    return activation is keras.activations.tanh and recurrent_activation is keras.activations.sigmoid


def fits(arrays: tuple[Array, ...]) -> bool:
    """Return whether all arrays have the same dtype, float32 or float64, and none is empty."""
    dtypes = {jnp.dtype(array.dtype) for array in arrays}
    return dtypes in ({jnp.dtype("float32")}, {jnp.dtype("float64")}) and all(array.size for array in arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 5))
def run(
    passes: Passes, inputs: Array, start: State, weights: Weights, mask: Array | None, every: bool
) -> tuple[Array | None, State]:
    """Run a recurrent layer over `(batch, time, features)`.

    Args:
        passes: the implementation.
        inputs: the sequence, in the order of computation.
        start: the state before the first step.
        weights: kernel, bias and recurrent kernel.
        mask: `(batch, time)`, False where a step does not change the state; None for no mask.
        every: whether to return the hidden states of all steps.

    Returns:
        The hidden states `(batch, time, units)` or None, and the last state.
    """
    return _forward(passes, inputs, start, weights, mask, every, keeps=False)[0]


def _forward(
    passes: Passes,
    inputs: Array,
    start: State,
    weights: Weights,
    mask: Array | None,
    every: bool,
    keeps: bool = True,
) -> tuple[Any, Any]:
    mask = jnp.ones((len(inputs), 0), bool) if mask is None else mask.astype(bool)
    results = passes.forward(inputs, *start, mask, *weights, every=every, keeps=keeps)
    last, states, residuals = tuple(results[: len(start)]), results[len(start)], results[len(start) + 1 :]
    return (states if every else None, last), (weights, residuals, mask)


def _backward(
    passes: Passes, every: bool, kept: Any, gradient: tuple[Array | None, State]
) -> tuple[Array, State, Weights, None]:
    outer, last = gradient
    (kernel, _, recurrent), residuals, mask = kept
    outer = jnp.zeros((len(last[0]), 0, last[0].shape[1]), last[0].dtype) if outer is None else outer
    results = passes.backward(*last, outer, mask, *residuals[passes.first_read :], kernel, recurrent)
    inputs, *start, slopes = results
    # One replica here: under `vmap` the rule of `RowFunction` multiplies this setting.
    kernel, bias, recurrent = (gradients[0] for gradients in passes.weights(residuals[0], slopes, replicas=1))
    return inputs, tuple(start), (kernel, bias, recurrent), None


run.defvjp(_forward, _backward)


def _ordered(sequence: Any, go_backwards: bool) -> Any:
    """Return a sequence `(batch, time, ...)` in the order of computation; None for None."""
    return jnp.flip(sequence, 1) if go_backwards and sequence is not None else sequence
