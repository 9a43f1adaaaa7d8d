"""The LSTM as XLA's CPU compiler runs it fast, through the place that Keras keeps for a backend's own.

Idea: one matrix product a step, of inputs and hidden state side by side, forward and again for the gradient of the
weights; and one function for all gates. A sigmoid is computed as a tanh, `sigmoid(x) = tanh(x / 2) / 2 + 1 / 2`,
which XLA:CPU vectorises; halving is exact, and is done to the weights, before the loop. The forward pass keeps these
tanhs and the states for the backward pass, nothing else.

Rule: what this file does not compute as Keras does, it refuses with NotImplementedError, and Keras takes its own way.
Arrays are time-major, `(time, batch, features)`; gates lie in Keras's order: input, forget, candidate, output. What
else was tried (inputs projected before the loop, weights' gradient after it, in spans, gates recomputed) is in
docs/decisions/0004.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from anytpu import _keras

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
    if not is_faster(len(inputs), len(recurrent_kernel)):
        raise NotImplementedError
    steps, kept = _ordered(inputs, go_backwards), _kept(mask, go_backwards)
    ran: Any = run(steps, start, weights, kept, return_sequences)
    every, last = ran
    every = last[0][None] if every is None else every
    if zero_output_for_mask and kept is not None:
        every = jnp.where(kept[-len(every) :], every, 0)
    return every[-1], jnp.swapaxes(every, 0, 1), list(last)


def is_faster(batch: int, units: int) -> bool:
    """Say whether this implementation is at least as fast as Keras's own: all but large batches of very few units.

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
    hidden, cell, _ = _states(steps, start, weights, kept)
    return hidden if every else None, (hidden[-1], cell[-1])


def _forward(steps: Array, start: State, weights: Weights, kept: Array | None, every: bool) -> tuple[Any, Any]:
    hidden, cell, tangents = _states(steps, start, weights, kept)
    before = jax.tree.map(lambda first, all_: jnp.concatenate([first[None], all_[:-1]]), start, (hidden, cell))
    for_it = (jnp.concatenate([steps, before[0]], -1), kept, before[1], cell, tangents), weights
    return (hidden if every else None, (hidden[-1], cell[-1])), for_it


def _states(steps: Array, start: State, weights: Weights, kept: Array | None) -> tuple[Array, Array, Array]:
    """Return hidden state, cell state `(time, batch, units)` and the tangents of the gates after each step."""
    factor = _half(weights[1])
    both, bias = jnp.concatenate(weights[:2]) * factor, weights[2] * factor

    def step(state: State, now: tuple[Array, Array | None]) -> tuple[State, tuple[Array, Array, Array]]:
        (hidden, cell), (features, keep) = state, now
        tangents = jnp.tanh(jnp.concatenate([features, hidden], -1) @ both + bias)
        into, forget, candidate, out = _gates(tangents)
        cell = forget * cell + into * candidate
        state = _where(keep, (out * jnp.tanh(cell), cell), state)
        return state, (*state, tangents)

    return lax.scan(step, start, (steps, kept))[1]


def _backward(every: bool, for_it: Any, gradient: tuple[Array | None, State]) -> tuple[Array, State, Weights, None]:
    """Return the gradients of inputs, initial state and weights."""
    steps, (kernel, recurrent, bias) = for_it
    outer, last = gradient
    back = functools.partial(_step_back, recurrent.T)

    def walk(carry: Any, now: Any) -> tuple[Any, Array]:
        later, total, total_bias = carry
        both, *step, outer = now
        later, slopes = back(later, step, outer)
        return (later, total + both.T @ slopes, total_bias + slopes.sum(0)), slopes @ kernel.T

    carry = last, jnp.zeros_like(jnp.concatenate([kernel, recurrent])), jnp.zeros_like(bias)
    (first, total, total_bias), inputs = lax.scan(walk, carry, (*steps, outer), reverse=True)
    return inputs, first, (total[: len(kernel)], total[len(kernel) :], total_bias), None


def _step_back(recurrent: Array, later: State, step: Any, outer: Array | None) -> tuple[State, Array]:
    """Go back over one step.

    Args:
        recurrent: the recurrent kernel, transposed.
        later: the gradient of the state after the step, as far as later steps give it.
        step: mask, cell before and after the step, and tangents of the gates.
        outer: the gradient of the step's output; None for none.

    Returns:
        The gradient of the state before the step, and of the sums that went into the gates, `(batch, 4 x units)`.
    """
    keep, before, after, tangents = step
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


def _half(recurrent: Array) -> Array:
    """Return the factor of the weights of gates that are computed as tangents: one half, but one for the candidate."""
    return jnp.repeat(jnp.asarray([0.5, 0.5, 1.0, 0.5], recurrent.dtype), len(recurrent))


def _gates(tangents: Array) -> tuple[Array, Array, Array, Array]:
    """Return input, forget, candidate and output gate out of their tangents."""
    into, forget, candidate, out = jnp.split(tangents, 4, -1)
    return 0.5 * into + 0.5, 0.5 * forget + 0.5, candidate, 0.5 * out + 0.5


def _where(keep: Array | None, new: Any, old: Any) -> Any:
    return new if keep is None else jax.tree.map(lambda n, o: jnp.where(keep, n, o), new, old)
