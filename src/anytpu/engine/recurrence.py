"""The two loops of an LSTM, forward and back, as XLA's CPU compiler runs them fast.

Idea: features first, batch last, so that a gate is one block of memory and a step is one matrix product from the left,
of inputs, a one for the bias, and hidden state. A sigmoid is a tanh, `sigmoid(x) = tanh(x / 2) / 2 + 1 / 2`,
which XLA:CPU vectorises; halving is exact, and is done to the weights, before the loop. The forward pass keeps what
went into the product, tanhs and cells. The weights' gradient is one product after the backward loop.

Rule: a step reads no slice where it computes with it: XLA:CPU would look up where the slice begins for each element,
and vectorise nothing. The forward step makes what it needs; the backward step finds it in the carry, where the step
before put it. What else was tried is in docs/decisions/0004.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Weights = tuple[Array, Array, Array]
"""Kernel `(features, 4 x units)`, recurrent kernel `(units, 4 x units)`, bias `(4 x units,)`."""

State = tuple[Array, Array]
"""Hidden and cell state, `(batch, units)` each."""

Kept = tuple[Array, Array, Array, Array]
"""Of each step: what went into the product, tangents of the gates, cell before it, tangent of the cell after it."""

PART = 32
"""The rows of a part of the batch, two vector registers of float32: its steps and their gradients stay in the cache."""


def forward(inputs: Array, start: State, weights: Weights, mask: Array | None) -> tuple[Array, State, list[Kept]]:
    """Run an LSTM, and keep what the backward pass needs.

    Args:
        inputs: `(batch, time, features)`.
        start: the state before the first step.
        weights: kernel, recurrent kernel, bias.
        mask: `(batch, time)`, False where the state stays as it is; None where it never does.

    Returns:
        The hidden states `(batch, time, units)`, the last state, and what is kept of each part of the batch.
    """
    product = _halved(weights)
    ran = [_forward_part(product, *part) for part in _parts(inputs, *start, mask)]
    every, hidden, cell, kept = zip(*ran, strict=True)
    return jnp.concatenate(every), (jnp.concatenate(hidden), jnp.concatenate(cell)), list(kept)


def backward(
    weights: Weights, kept: list[Kept], mask: Array | None, last: State, every: Array | None
) -> tuple[Array, State, Weights]:
    """Go back over an LSTM.

    Args:
        weights: kernel, recurrent kernel, bias.
        kept: what `forward` kept.
        mask: what `forward` got.
        last: the gradient of the last state.
        every: the gradient of the hidden states, `(batch, time, units)`; None for none.

    Returns:
        The gradients of inputs, initial state and weights.
    """
    back = jnp.concatenate(weights[:2])
    ran = [_backward_part(back, one, *part) for one, part in zip(kept, _parts(*last, mask, every), strict=True)]
    inputs, hidden, cell, totals = zip(*ran, strict=True)
    total, features = functools.reduce(jnp.add, totals), len(weights[0])
    gradients = total[:features], total[features + 1 :], total[features]
    return jnp.concatenate(inputs), (jnp.concatenate(hidden), jnp.concatenate(cell)), gradients


def _parts(*whole: Array | None) -> list[list[Any]]:
    """Cut arrays along the batch, into parts of `PART` rows where that is possible."""
    count = next(len(one) for one in whole if one is not None)
    count = count // PART if count % PART == 0 else 1
    cut: list[list[Any]] = [[None] * count if one is None else jnp.split(one, count) for one in whole]
    return [list(part) for part in zip(*cut, strict=True)]


def _halved(weights: Weights) -> Array:
    """Return kernel, bias and recurrent kernel, halved for sigmoids, as `(4 x units, features + 1 + units)`."""
    kernel, recurrent, bias = weights
    factor = jnp.repeat(jnp.asarray([0.5, 0.5, 1.0, 0.5], kernel.dtype), len(recurrent))
    return (jnp.concatenate([kernel, bias[None], recurrent]) * factor).T


def _forward_part(product: Array, inputs: Array, hidden: Array, cell: Array, mask: Array | None) -> Any:
    (batch, time, _), units = inputs.shape, hidden.shape[1]
    rows = jnp.transpose(inputs, (1, 2, 0))
    rows = jnp.concatenate([rows, jnp.ones_like(rows[:, :1])], 1)
    keep = _flat_mask(mask, units)

    def step(t: Any, carry: Any) -> Any:
        hidden, cell, kept = carry
        both = jnp.concatenate([rows[t], hidden.reshape(units, batch)])
        tangents = jnp.tanh(product @ both).reshape(4, -1)
        into, forget, candidate, out = _gates(tangents)
        new = forget * cell + into * candidate
        tangent = jnp.tanh(new)
        kept = [_put(stack, one, t) for stack, one in zip(kept, (both, tangents, cell, tangent), strict=True)]
        now = None if keep is None else keep[t]
        return _where(now, out * tangent, hidden), _where(now, new, cell), kept

    empty, n = _empty(inputs), units * batch
    kept = [empty(time, product.shape[1], batch), empty(time, 4, n), empty(time, n), empty(time, n)]
    hidden, cell, kept = lax.fori_loop(0, time, step, (hidden.T.reshape(-1), cell.T.reshape(-1), kept))
    last = hidden.reshape(units, batch)
    every = jnp.concatenate([kept[0][1:, -units:], last[None]])
    return jnp.transpose(every, (2, 0, 1)), last.T, cell.reshape(units, batch).T, tuple(kept)


def _backward_part(back: Array, kept: Kept, hidden: Array, cell: Array, mask: Array | None, every: Array | None) -> Any:
    (time, width, batch), units = kept[0].shape, hidden.shape[1]
    features, n = width - 1 - units, units * batch
    outer = None if every is None else jnp.transpose(every, (1, 2, 0)).reshape(time, -1)
    stacks = (*kept[1:], _flat_mask(mask, units), outer)

    def step(i: Any, carry: Any) -> Any:
        hidden, cell, loaded, (inputs, slopes) = carry
        t = time - 1 - i
        earlier, of_gates = _step_back(hidden, cell, *loaded)
        for gate, slope in enumerate(of_gates):
            slopes = lax.dynamic_update_slice(slopes, slope[None, None], (t, gate, 0))
        both = back @ slopes[t].reshape(4 * units, batch)
        inputs = _put(inputs, both[:features], t)
        hidden = both[features:].reshape(-1) + earlier[0] if mask is not None else both[features:].reshape(-1)
        return hidden, earlier[1], _load(stacks, jnp.maximum(t - 1, 0)), (inputs, slopes)

    empty = _empty(kept[0])
    carry = hidden.T.reshape(-1), cell.T.reshape(-1), _load(stacks, time - 1)
    gradients = empty(time, features, batch), empty(time, 4, n)
    hidden, cell, _, (inputs, slopes) = lax.fori_loop(0, time, step, (*carry, gradients))
    rows, slopes = (jnp.swapaxes(one.reshape(time, -1, batch), 0, 1) for one in (kept[0], slopes))
    total = jnp.einsum("rk,gk->rg", rows.reshape(width, -1), slopes.reshape(4 * units, -1))
    return jnp.transpose(inputs, (2, 0, 1)), hidden.reshape(units, -1).T, cell.reshape(units, -1).T, total


def _step_back(
    hidden: Array, cell: Array, tangents: Array, before: Array, tangent: Array, keep: Array | None, outer: Array | None
) -> tuple[tuple[Array, Array], list[Array]]:
    """Go back over one step, but for the product.

    Args:
        hidden: the gradient of the hidden state after the step, as far as later steps give it; `(units x batch,)`.
        cell: the gradient of the cell state after the step.
        tangents: the tangents of the gates.
        before: the cell state before the step.
        tangent: the tangent of the cell state after it.
        keep: the mask; None for none.
        outer: the gradient of the step's output; None for none.

    Returns:
        What of the gradient of the state before does not come through the product, and the gradients of the four sums.
    """
    hidden = hidden if outer is None else hidden + outer
    zero = jnp.zeros_like(hidden)
    here, inner = _where(keep, hidden, zero), _where(keep, cell, zero)
    into, forget, candidate, out = _gates(tangents)
    inner = inner + here * out * (1 - tangent * tangent)
    slopes = [
        inner * candidate * into * (1 - into),
        inner * before * forget * (1 - forget),
        inner * into * (1 - candidate * candidate),
        here * tangent * out * (1 - out),
    ]
    if keep is None:
        return (zero, inner * forget), slopes
    return (jnp.where(keep, zero, hidden), inner * forget + jnp.where(keep, zero, cell)), slopes


def _empty(like: Array) -> Callable[..., Array]:
    """Return what makes arrays to be filled: of one constant XLA would make one array, and copy it for each loop."""
    nothing = like[(0,) * like.ndim] * 0
    return lambda *shape: jnp.broadcast_to(nothing, shape)


def _flat_mask(mask: Array | None, units: int) -> Array | None:
    """Return a mask `(batch, time)` as booleans `(time, units x batch)`."""
    if mask is None:
        return None
    batch, time = mask.shape
    return jnp.broadcast_to(mask.T.astype(bool)[:, None], (time, units, batch)).reshape(time, -1)


def _gates(tangents: Array) -> tuple[Array, Array, Array, Array]:
    """Return input, forget, candidate and output gate out of their tangents."""
    into, forget, candidate, out = tangents
    return 0.5 * into + 0.5, 0.5 * forget + 0.5, candidate, 0.5 * out + 0.5


def _load(stacks: tuple[Array | None, ...], t: Any) -> Any:
    return jax.tree.map(lambda stack: stack[t], stacks)


def _put(stack: Array, one: Array, t: Any) -> Array:
    return lax.dynamic_update_index_in_dim(stack, one, t, 0)


def _where(keep: Array | None, new: Array, old: Array) -> Array:
    return new if keep is None else jnp.where(keep, new, old)
