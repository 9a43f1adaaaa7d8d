"""The two passes of an LSTM over a sequence.

Idea: rows of a batch are independent, so each thread runs all steps of some rows; the library's loop is in
`cpp/lstm_steps.inc`. The forward pass returns residuals: the column of each product, and the gates. The backward pass
returns the gradients of the gates before their activation. The weights' gradient is one product of these and the
columns.

Rule: float32, tanh and sigmoid. Sequences have the batch as the first axis. Residuals have the time as the first axis,
so they are written in long pieces, which is three times as fast. Gates have Keras's order: input, forget, candidate,
output.
"""

from __future__ import annotations

from jax import Array

from anytpu_kernels.sequences import run_pass, sequence_weights


def lstm_forward(
    inputs: Array,
    hidden: Array,
    cell: Array,
    mask: Array,
    kernel: Array,
    bias: Array,
    recurrent: Array,
    *,
    every: bool,
    keeps: bool,
) -> list[Array]:
    """Run an LSTM over a sequence.

    Args:
        inputs: `(batch, time, features)`.
        hidden: hidden state before the first step, `(batch, units)`.
        cell: cell state before the first step, `(batch, units)`.
        mask: booleans `(batch, time)`, False where a step does not change the state; `(batch, 0)` for no mask.
        kernel: `(features, 4 x units)`.
        bias: `(4 x units,)`.
        recurrent: `(units, 4 x units)`.
        every: whether to return the hidden states of all steps.
        keeps: whether to return the residuals for `lstm_backward`.

    Returns:
        Seven arrays; the time axis of an array that is not requested has length 0:

        - the last hidden and the last cell state, `(batch, units)`;
        - the hidden states of all steps, `(batch, time, units)`;
        - residuals of each step: the column of inputs, a 1 and the hidden state, `(time, batch, features + 1 + units)`;
        - the gates, `(time, batch, 4 x units)`;
        - the cell state before the step, and the tanh of the cell state after it, `(time, batch, units)`.
    """
    (batch, time, features), units = inputs.shape, hidden.shape[1]
    state_steps, residual_steps = time if every else 0, time if keeps else 0
    shapes = [(batch, units)] * 2 + [(batch, state_steps, units), (residual_steps, batch, features + 1 + units)]
    shapes += [(residual_steps, batch, 4 * units), *[(residual_steps, batch, units)] * 2]
    return run_pass("anytpu_lstm_forward", shapes, inputs, hidden, cell, mask, kernel, bias, recurrent)


def lstm_backward(
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
    """Run the backward pass of an LSTM.

    Args:
        hidden: gradient of the last hidden state, `(batch, units)`.
        cell: gradient of the last cell state, `(batch, units)`.
        every: gradient of the hidden states of all steps, `(batch, time, units)`; `(batch, 0, units)` for none.
        mask: the mask of `lstm_forward`.
        gates: residual of `lstm_forward`: the gates.
        cells: residual of `lstm_forward`: the cell state before each step.
        tanh_cells: residual of `lstm_forward`: the tanh of the cell state after each step.
        kernel: `(features, 4 x units)`.
        recurrent: `(units, 4 x units)`.

    Returns:
        The gradients of the inputs, of the initial hidden and of the initial cell state. The last result is the
        gradient of the gates before their activation, `(time, batch, 4 x units)`.
    """
    (time, batch, width), units, features = gates.shape, hidden.shape[1], len(kernel)
    shapes = [(batch, time, features), (batch, units), (batch, units), (time, batch, width)]
    operands = hidden, cell, every, mask, gates, cells, tanh_cells, kernel, recurrent
    return run_pass("anytpu_lstm_backward", shapes, *operands)


def lstm_weights(rows: Array, slopes: Array, *, replicas: int = 1) -> list[Array]:
    """Return the gradients of kernel, bias and recurrent kernel.

    Args:
        rows: residual of `lstm_forward`: the columns.
        slopes: gradients of the gates before their activation, from `lstm_backward`.
        replicas: number of equal parts of the batch with a separate gradient, the first axis of each result.
    """
    units = slopes.shape[2] // 4
    features = rows.shape[2] - 1 - units
    total = sequence_weights(rows, slopes, (replicas, features + 1 + units, 4 * units))
    return [total[:, :features], total[:, features], total[:, features + 1 :]]
