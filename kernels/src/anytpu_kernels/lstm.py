"""The two passes of an LSTM over a sequence.

Idea: rows of a batch are independent, so each thread runs all steps of some rows; the library's loop is in
`cpp/lstm_steps.inc`. The forward pass keeps what went into each product and what the gates gave. The backward pass
returns the gradient of the gates' sums, and the weights' gradient is one product of those two.

Rule: float32, tanh and sigmoid. Sequences have the batch first; what is kept has the time first, and is written in long
pieces, three times as fast. Gates lie in Keras's order: input, forget, candidate, output.
"""

from __future__ import annotations

import jax
from jax import Array

from anytpu_kernels.library import load


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
        hidden: the hidden state before the first step, `(batch, units)`.
        cell: the cell state before it.
        mask: booleans `(batch, time)`, False where the state stays as it is; `(batch, 0)` where it never does.
        kernel: `(features, 4 x units)`.
        bias: `(4 x units,)`.
        recurrent: `(units, 4 x units)`.
        every: whether the hidden states of all steps are returned.
        keeps: whether what `lstm_backward` needs is returned.

    Returns:
        The last hidden and cell state; all hidden states, `(batch, time, units)`; then of each step the inputs, a one
        and the hidden state before it, `(time, batch, features + 1 + units)`, the gates `(time, batch, 4 x units)`, the
        cell state before it and the tangent of that after it, `(time, batch, units)`. The axis of time is 0 long in
        what is not wanted.
    """
    load()
    (batch, time, features), units = inputs.shape, hidden.shape[1]
    wanted, kept = time if every else 0, time if keeps else 0
    shapes = [(batch, units)] * 2 + [(batch, wanted, units), (kept, batch, features + 1 + units)]
    shapes += [(kept, batch, 4 * units), *[(kept, batch, units)] * 2]
    return _call("anytpu_lstm_forward", shapes, inputs, hidden, cell, mask, kernel, bias, recurrent)


def lstm_backward(
    hidden: Array,
    cell: Array,
    every: Array,
    mask: Array,
    gates: Array,
    cells: Array,
    tangents: Array,
    kernel: Array,
    recurrent: Array,
) -> list[Array]:
    """Go back over an LSTM.

    Args:
        hidden: the gradient of the last hidden state, `(batch, units)`.
        cell: the gradient of the last cell state.
        every: the gradient of all hidden states, `(batch, time, units)`; `(batch, 0, units)` for none.
        mask: what `lstm_forward` got.
        gates: what it kept of the gates.
        cells: what it kept of the cell states.
        tangents: what it kept of their tangents.
        kernel: `(features, 4 x units)`.
        recurrent: `(units, 4 x units)`.

    Returns:
        The gradients of inputs, hidden and cell state, and of the sums that the gates are computed from,
        `(time, batch, 4 x units)`.
    """
    load()
    (time, batch, width), units, features = gates.shape, hidden.shape[1], len(kernel)
    shapes = [(batch, time, features), (batch, units), (batch, units), (time, batch, width)]
    operands = hidden, cell, every, mask, gates, cells, tangents, kernel, recurrent
    return _call("anytpu_lstm_backward", shapes, *operands)


def lstm_weights(rows: Array, slopes: Array, *, replicas: int = 1) -> Array:
    """Return the gradients of kernel, bias and recurrent kernel, below one another.

    Args:
        rows: what `lstm_forward` kept of inputs, ones and hidden states.
        slopes: what `lstm_backward` returned.
        replicas: equal parts of the batch that have a gradient each.

    Returns:
        `(replicas, features + 1 + units, 4 x units)`.
    """
    load()
    return _call("anytpu_lstm_weights", [(replicas, rows.shape[2], slopes.shape[2])], rows, slopes)[0]


def _call(name: str, shapes: list[tuple[int, ...]], *operands: Array) -> list[Array]:
    results = [jax.ShapeDtypeStruct(shape, operands[0].dtype) for shape in shapes]
    return list(jax.ffi.ffi_call(name, results, vmap_method="sequential")(*operands))
