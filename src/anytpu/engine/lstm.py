"""The LSTM as XLA's CPU compiler runs it fast, through the place that Keras keeps for a backend's own.

Idea: Keras's own scan keeps four gates a step for its gradient, and adds up the gradient of the weights in every
step. Here the forward pass keeps only the states. The backward pass goes through the sequence in spans that fit in a
core's cache: it computes the gates of a span again in one matrix product, walks back through them, and takes the
gradient of the weights from the whole span in one more. A sigmoid is computed as a tanh, `sigmoid(x) = tanh(x / 2) /
2 + 1 / 2`, so that one vectorised function serves all gates; halving is exact, and is done to the weights.

Rule: what this file does not compute as Keras does, it refuses with NotImplementedError, and Keras takes its own way.
Arrays are time-major, `(time, batch, features)`; gates lie in Keras's order: input, forget, candidate, output.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from anytpu import _keras

SPAN_BYTES = 1 << 20
"""The gates of one span take at most this much, about half of a core's second-level cache."""

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
        The last output `(batch, units)`, all outputs `(batch, time, units)` (the last only unless
        `return_sequences`), and the last hidden and cell state.

    Raises:
        NotImplementedError: not a case for this implementation; Keras then uses its own.
    """
    kernel, recurrent_kernel, bias = map(_keras.plain, (kernel, recurrent_kernel, bias))
    weights = kernel, recurrent_kernel, jnp.zeros_like(kernel[0]) if bias is None else bias
    start = initial_state_h, initial_state_c
    if unroll or not _are_default(activation, recurrent_activation) or not _fits((inputs, *start, *weights)):
        raise NotImplementedError
    steps, kept = _ordered(inputs, go_backwards), _kept(mask, go_backwards)
    ran: Any = run(steps, start, weights, kept, return_sequences)
    every, last = ran
    every = last[0][None] if every is None else every
    if zero_output_for_mask and kept is not None:
        every = jnp.where(kept[-len(every) :], every, 0)
    return every[-1], jnp.swapaxes(every, 0, 1), list(last)


def _are_default(activation: Any, recurrent_activation: Any) -> bool:
    import keras

    return activation is keras.activations.tanh and recurrent_activation is keras.activations.sigmoid


def _fits(arrays: tuple[Array, ...]) -> bool:
    """Say whether all have one dtype, float32 or float64, and there is anything to compute."""
    dtypes = {jnp.dtype(one.dtype) for one in arrays}
    return dtypes in ({jnp.dtype("float32")}, {jnp.dtype("float64")}) and all(one.size for one in arrays)


def _ordered(sequence: Array, go_backwards: bool) -> Array:
    """Return `(batch, time, ...)` as `(time, batch, ...)`, in the order in which it is read."""
    sequence = jnp.swapaxes(jnp.asarray(sequence), 0, 1)
    return jnp.flip(sequence, 0) if go_backwards else sequence


def _kept(mask: Array | None, go_backwards: bool) -> Array | None:
    """Return a mask as `(time, batch, 1)` booleans."""
    return None if mask is None else _ordered(mask, go_backwards).astype(bool)[..., None]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def run(steps: Array, start: State, weights: Weights, kept: Array | None, every: bool) -> tuple[Array | None, State]:
    """Run an LSTM over time-major inputs.

    Args:
        steps: `(time, batch, features)`.
        start: the state before the first step.
        weights: kernel, recurrent kernel and bias.
        kept: `(time, batch, 1)`, False where the state stays as it is; None where it never does.
        every: whether the hidden states of all steps are returned.

    Returns:
        The hidden states `(time, batch, units)` or None, and the last state.
    """
    hidden, cell = _states(steps, start, weights, kept)
    return hidden if every else None, (hidden[-1], cell[-1])


def _forward(steps: Array, start: State, weights: Weights, kept: Array | None, every: bool) -> tuple[Any, Any]:
    hidden, cell = _states(steps, start, weights, kept)
    return (hidden if every else None, (hidden[-1], cell[-1])), (steps, start, weights, kept, hidden, cell)


def _states(steps: Array, start: State, weights: Weights, kept: Array | None) -> State:
    """Return hidden and cell state after each step, `(time, batch, units)` each."""
    kernel, recurrent, bias = _halved(weights)
    both = jnp.concatenate([kernel, recurrent])

    def step(state: State, now: tuple[Array, Array | None]) -> tuple[State, State]:
        (hidden, cell), (features, keep) = state, now
        tangents = jnp.tanh(jnp.concatenate([features, hidden], -1) @ both + bias)
        into, forget, candidate, out = _gates(tangents)
        cell = forget * cell + into * candidate
        state = _where(keep, (out * jnp.tanh(cell), cell), state)
        return state, state

    return lax.scan(step, start, (steps, kept))[1]


def _backward(
    every: bool, kept_for_it: Any, gradient: tuple[Array | None, State]
) -> tuple[Array, State, Weights, None]:
    """Return the gradients of inputs, initial state and weights."""
    steps, start, weights, kept, hidden, cell = kept_for_it
    outer, last = gradient
    kernel, recurrent, bias = _halved(weights)

    def walk(carry: Any, now: Any) -> tuple[Any, Array]:
        later, total = carry
        features, keep, (before, cell_before), cell, outer = now
        tangents = jnp.tanh(features @ kernel + before @ recurrent + bias)
        step = functools.partial(_step_back, weights[1].T)
        later, slopes = lax.scan(step, later, (tangents, keep, cell_before, cell, outer), reverse=True)
        here = (
            jnp.einsum("tbi,tbo->io", features, slopes),
            jnp.einsum("tbi,tbo->io", before, slopes),
            slopes.sum((0, 1)),
        )
        return (later, jax.tree.map(jnp.add, total, here)), slopes @ weights[0].T

    before = jax.tree.map(lambda first, all_: jnp.concatenate([first[None], all_[:-1]]), start, (hidden, cell))
    span = _span(steps.shape[0], 4 * hidden[0].nbytes)
    spans = jax.tree.map(lambda one: one.reshape(-1, span, *one.shape[1:]), (steps, kept, before, cell, outer))
    carry = last, jax.tree.map(jnp.zeros_like, weights)
    (first, total), inputs = lax.scan(walk, carry, spans, reverse=True)
    return inputs.reshape(steps.shape), first, total, None


def _step_back(recurrent: Array, later: State, now: Any) -> tuple[State, Array]:
    """Go back over one step.

    Args:
        recurrent: the recurrent kernel, transposed.
        later: the gradient of the state after the step, as far as later steps give it.
        now: what the step computed: tangents of the gates, mask, cell before and after; and the gradient of its output.

    Returns:
        The gradient of the state before the step, and of the sums that went into the gates, `(batch, 4 x units)`.
    """
    tangents, keep, before, after, outer = now
    hidden, cell = (later[0] if outer is None else later[0] + outer), later[1]
    grad_hidden, grad_cell = _where(keep, (hidden, cell), (0.0, 0.0))
    into, forget, candidate, out = _gates(tangents)
    tangent = jnp.tanh(after)
    grad_cell = grad_cell + grad_hidden * out * (1 - tangent * tangent)
    slopes = [
        grad_cell * candidate * into * (1 - into),
        grad_cell * before * forget * (1 - forget),
        grad_cell * into * (1 - candidate * candidate),
        grad_hidden * tangent * out * (1 - out),
    ]
    slopes = jnp.concatenate(slopes, -1)
    earlier = slopes @ recurrent, grad_cell * forget
    if keep is not None:
        earlier = jax.tree.map(lambda new, old: new + jnp.where(keep, 0, old), earlier, (hidden, cell))
    return earlier, slopes


run.defvjp(_forward, _backward)


def _halved(weights: Weights) -> Weights:
    """Return the weights for gates that are computed as tangents: halved, but for those of the candidate."""
    units = weights[1].shape[0]
    factor = jnp.repeat(jnp.asarray([0.5, 0.5, 1.0, 0.5], weights[1].dtype), units)
    kernel, recurrent, bias = weights
    return kernel * factor, recurrent * factor, bias * factor


def _gates(tangents: Array) -> tuple[Array, Array, Array, Array]:
    """Return input, forget, candidate and output gate out of their tangents."""
    into, forget, candidate, out = jnp.split(tangents, 4, -1)
    return 0.5 * into + 0.5, 0.5 * forget + 0.5, candidate, 0.5 * out + 0.5


def _where(keep: Array | None, new: Any, old: Any) -> Any:
    return new if keep is None else jax.tree.map(lambda n, o: jnp.where(keep, n, o), new, old)


def _span(steps: int, step_bytes: int) -> int:
    """Return how many steps are walked back at once: as many as divide `steps` and fit in the cache, or all."""
    divisors = [n for n in range(1, steps + 1) if steps % n == 0]
    fitting = max(n for n in divisors if n == 1 or n * step_bytes <= SPAN_BYTES)
    return fitting if fitting >= min(8, steps) else steps
