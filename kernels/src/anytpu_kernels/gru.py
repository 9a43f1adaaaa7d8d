"""The two passes of a GRU over a sequence, in the form that resets after the product (`reset_after` of Keras).

Idea: as in `lstm`, each thread runs all steps of some rows; the library's loop is in `cpp/gru_steps.inc`. The candidate
needs the products of the inputs and of the hidden state separately, so a step has two products.

Rule: float32, tanh and sigmoid. Sequences have the batch as the first axis, residuals the time. Weights have Keras's
order of gates: update, reset, candidate.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from anytpu_kernels.sequences import run_pass, sequence_weights


def gru_forward(
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
    """Run a GRU over a sequence.

    Args:
        inputs: `(batch, time, features)`.
        hidden: hidden state before the first step, `(batch, units)`.
        mask: booleans `(batch, time)`, False where a step does not change the state; `(batch, 0)` for no mask.
        kernel: `(features, 3 x units)`.
        bias: of the inputs' product and of the hidden state's product, `(2, 3 x units)`.
        recurrent: `(units, 3 x units)`.
        every: whether to return the hidden states of all steps.
        keeps: whether to return the residuals for `gru_backward`.

    Returns:
        Four arrays; the time axis of an array that is not requested has length 0:

        - the last hidden state, `(batch, units)`;
        - the hidden states of all steps, `(batch, time, units)`;
        - residuals of each step: inputs, a 1 and the hidden state before it, `(time, batch, features + 1 + units)`;
        - update gate, reset gate, candidate, and the hidden state's product for the candidate,
          `(time, batch, 4 x units)`.
    """
    (batch, time, features), units = inputs.shape, hidden.shape[1]
    state_steps, residual_steps = time if every else 0, time if keeps else 0
    shapes = [(batch, units), (batch, state_steps, units)]
    shapes += [(residual_steps, batch, features + 1 + units), (residual_steps, batch, 4 * units)]
    return run_pass("anytpu_gru_forward", shapes, inputs, hidden, mask, kernel, bias, recurrent)


def gru_backward(
    hidden: Array, every: Array, mask: Array, rows: Array, gates: Array, kernel: Array, recurrent: Array
) -> list[Array]:
    """Run the backward pass of a GRU.

    Args:
        hidden: gradient of the last hidden state, `(batch, units)`.
        every: gradient of the hidden states of all steps, `(batch, time, units)`; `(batch, 0, units)` for none.
        mask: the mask of `gru_forward`.
        rows: residual of `gru_forward`: inputs, a 1 and the hidden state.
        gates: residual of `gru_forward`: the gates.
        kernel: `(features, 3 x units)`.
        recurrent: `(units, 3 x units)`.

    Returns:
        The gradients of the inputs and of the initial hidden state. The last result is the gradients of the products,
        `(time, batch, 4 x units)`: of the inputs' candidate, of the update and reset gate before their activation, and
        of the hidden state's candidate.
    """
    (time, batch, width), units, features = gates.shape, hidden.shape[1], len(kernel)
    shapes = [(batch, time, features), (batch, units), (time, batch, width)]
    return run_pass("anytpu_gru_backward", shapes, hidden, every, mask, rows, gates, kernel, recurrent)


def gru_weights(rows: Array, slopes: Array, *, replicas: int = 1) -> list[Array]:
    """Return the gradients of kernel, bias and recurrent kernel.

    Args:
        rows: residual of `gru_forward`: inputs, a 1 and the hidden state.
        slopes: gradients of the products, from `gru_backward`.
        replicas: number of equal parts of the batch with a separate gradient, the first axis of each result.
    """
    units = slopes.shape[2] // 4
    features = rows.shape[2] - 1 - units
    inputs = sequence_weights(rows, slopes, (replicas, features + 1, 3 * units))
    shape = replicas, 1 + units, 3 * units
    hidden = sequence_weights(rows, slopes, shape, first_row=features, first_column=units)
    inputs = jnp.roll(inputs, -units, 2)  # Keras's order has the candidate last.
    bias = jnp.stack([inputs[:, features], hidden[:, 0]], 1)
    return [inputs[:, :features], bias, hidden[:, 1:]]
