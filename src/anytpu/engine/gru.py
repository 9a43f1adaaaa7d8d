"""A GRU of the foreign kernels, at the hook that Keras has for a backend's own GRU.

Idea: `sequence` has the options of Keras, and the kernels compute the passes. The plain functions below compute the
same in JAX's operations, for derivatives of higher order.

Rule: float32, tanh and sigmoid, and the form that resets after the product (`reset_after`). For everything else, and
without the kernels, NotImplementedError is raised and Keras uses its own implementation. The gates are in Keras's
order: update, reset, candidate.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from anytpu import _keras
from anytpu.engine.foreign import foreign_kernels
from anytpu.engine.replica_rows import RowFunction
from anytpu.engine.sequence import Passes, fits, has_default_activations, run_layer


def gru(
    inputs: Array,
    initial_state: Array,
    mask: Array | None,
    kernel: Any,
    recurrent_kernel: Any,
    bias: Any,
    activation: Any,
    recurrent_activation: Any,
    return_sequences: bool = False,
    go_backwards: bool = False,
    unroll: bool = False,
    reset_after: bool = True,
    zero_output_for_mask: bool = False,
) -> tuple[Array, Array, list[Array]]:
    """Run a GRU over a sequence. This is the function that Keras calls as `backend.gru`.

    Args:
        inputs: `(batch, time, features)`.
        initial_state: `(batch, units)`.
        mask: `(batch, time)`, False where a step is skipped; None skips nothing.
        kernel: `(features, 3 x units)`.
        recurrent_kernel: `(units, 3 x units)`.
        bias: of the inputs' product and of the hidden state's product, `(2, 3 x units)`; None for no bias.
        activation: must be tanh.
        recurrent_activation: must be sigmoid.
        return_sequences: as in `run_layer`.
        go_backwards: as in `run_layer`.
        unroll: must be False.
        reset_after: must be True.
        zero_output_for_mask: as in `run_layer`.

    Returns:
        The results of `run_layer`.

    Raises:
        NotImplementedError: an argument is not supported; Keras then uses its own implementation.
    """
    kernels = foreign_kernels() if jnp.dtype(inputs.dtype) == jnp.float32 else None
    if kernels is None or unroll or not reset_after or not has_default_activations(activation, recurrent_activation):
        raise NotImplementedError
    kernel, recurrent_kernel, bias = map(_keras.array_of, (kernel, recurrent_kernel, bias))
    weights = kernel, jnp.zeros((2, kernel.shape[1]), kernel.dtype) if bias is None else bias, recurrent_kernel
    if not fits((inputs, initial_state, *weights)):
        raise NotImplementedError
    options = return_sequences, go_backwards, zero_output_for_mask
    return run_layer(foreign_passes(kernels), inputs, (initial_state,), weights, mask, *options)


@functools.cache
def foreign_passes(kernels: ModuleType) -> Passes:
    """Return the passes of the module `anytpu_kernels`."""
    return Passes(
        RowFunction(kernels.gru_forward, (0, 0, 0, None, None, None), (0, 0, 1, 1), _plain_forward),
        RowFunction(kernels.gru_backward, (0, 0, 0, 1, 1, None, None), (0, 0, 1), _plain_backward),
        RowFunction(kernels.gru_weights, (1, 1), (0, 0, 0), _plain_weights),
        first_read=0,
    )


def _plain_forward(
    inputs: Array,
    hidden: Array,
    mask: Array,
    kernel: Array,
    bias: Array,
    recurrent: Array,
    *,
    every: bool,
    keeps: bool,
) -> list[Array]:
    """Compute `anytpu_kernels.gru_forward`."""

    def step(hidden: Array, entry: Any) -> Any:
        outer, is_active = entry
        inner = jnp.split(hidden @ recurrent + bias[1], 3, 1)
        update, reset = ((1 + jnp.tanh((outer[i] + inner[i]) / 2)) / 2 for i in range(2))
        candidate = jnp.tanh(outer[2] + reset * inner[2])
        new = jnp.where(is_active, update * hidden + (1 - update) * candidate, hidden)
        return new, (new, hidden, jnp.concatenate([update, reset, candidate, inner[2]], 1))

    steps = jnp.swapaxes(inputs, 0, 1)
    outer = jnp.split(steps @ kernel + bias[0], 3, 2)
    last, (states, before, gates) = lax.scan(step, hidden, (outer, _active(mask, inputs.shape[1])))
    rows = jnp.concatenate([steps, jnp.ones_like(steps[..., :1]), before], 2)
    kept = None if keeps else 0
    return [last, jnp.swapaxes(states, 0, 1)[:, : None if every else 0], rows[:kept], gates[:kept]]


def _plain_backward(
    hidden: Array, every: Array, mask: Array, rows: Array, gates: Array, kernel: Array, recurrent: Array
) -> list[Array]:
    """Compute `anytpu_kernels.gru_backward`."""
    (time, batch, _), units = gates.shape, hidden.shape[1]

    def step(hidden: Array, entry: Any) -> Any:
        outer, is_active, before, gates = entry
        hidden = hidden + outer
        update, reset, candidate, inner = jnp.split(gates, 4, 1)
        new = jnp.where(is_active, hidden, 0)
        into = new * (1 - update) * (1 - candidate * candidate)
        slopes = into, new * (before - candidate) * update * (1 - update), into * inner * reset * (1 - reset)
        slopes = jnp.concatenate([*slopes, into * reset], 1)
        return jnp.where(is_active, hidden * update, hidden) + slopes[:, units:] @ recurrent.T, slopes

    outer = jnp.swapaxes(every, 0, 1) if every.shape[1] else jnp.zeros((time, batch, units), hidden.dtype)
    entries = outer, _active(mask, time), rows[..., -units:], gates
    hidden, slopes = lax.scan(step, hidden, entries, reverse=True)
    inputs = jnp.roll(slopes[..., : 3 * units], -units, 2) @ kernel.T
    return [jnp.swapaxes(inputs, 0, 1), hidden, slopes]


def _plain_weights(rows: Array, slopes: Array, *, replicas: int) -> list[Array]:
    """Compute `anytpu_kernels.gru_weights`."""
    units = slopes.shape[2] // 4
    features = rows.shape[2] - 1 - units
    split = [array.reshape(len(array), replicas, -1, array.shape[2]) for array in (rows, slopes)]
    total = jnp.einsum("trbk,trbg->rkg", *split)
    inputs, hidden = jnp.roll(total[:, : features + 1, : 3 * units], -units, 2), total[:, features:, units:]
    return [inputs[:, :features], jnp.stack([inputs[:, features], hidden[:, 0]], 1), hidden[:, 1:]]


def _active(mask: Array, time: int) -> Array:
    """Return whether a step changes the state, `(time, batch, 1)`."""
    return mask.T[..., None] if mask.shape[1] else jnp.ones((time, len(mask), 1), bool)
