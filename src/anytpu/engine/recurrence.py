"""The forward and backward loops of an LSTM, in the form that XLA's CPU compiler runs fast.

Idea: the features are the first axis and the batch is the last, so the values of a gate are contiguous. A step is one
matrix product of the weights and a column: the inputs, a 1 for the bias, and the hidden state. A sigmoid is computed as
`tanh(x / 2) / 2 + 1 / 2`, which XLA:CPU vectorises. Halving is exact, so the weights are halved before the loop. The
forward pass keeps residuals of each step: the column, the tanh of the gates, and the cell state. The weights' gradient
is one product after the backward loop. Under `vmap` the rows of replicas that share weights are one batch
(`replica_rows`).

Rule: a step does not compute with a slice that it reads itself. Otherwise XLA:CPU computes the start of the slice for
each element, and does not vectorise. The forward step computes its operands. The backward step has them in the carry,
where the previous step stored them. docs/decisions/0004 lists the other forms that were measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from anytpu.engine.replica_rows import RowFunction
from anytpu.engine.sequence import Passes

PART_ROWS = 32
"""Number of rows in a part of the batch, two vector registers of float32: a part's values stay in the cache."""


def forward(
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
    """Run an LSTM, and return the residuals for the backward pass.

    Args:
        inputs: `(batch, time, features)`.
        hidden: hidden state before the first step, `(batch, units)`.
        cell: cell state before the first step, `(batch, units)`.
        mask: `(batch, time)`, False where a step does not change the state; `(batch, 0)` for no mask.
        kernel: `(features, 4 x units)`.
        bias: `(4 x units,)`.
        recurrent: `(units, 4 x units)`.
        every: whether to return the hidden states of all steps; otherwise their array is `(batch, 0, units)`.
        keeps: whether the caller uses the residuals. They are always returned, and XLA removes unused ones.

    Returns:
        Seven arrays:

        - the last hidden and the last cell state, `(batch, units)`;
        - the hidden states of all steps, `(batch, time, units)`;
        - residuals of each step: the column, `(time, features + 1 + units, batch)`;
        - the tanh of the gates, `(time, 4, units, batch)`;
        - the cell state before the step, and the tanh of the cell state after it, `(time, units, batch)`.
    """
    product = _halved(kernel, bias, recurrent)
    results = [_forward_part(product, *part) for part in _parts((inputs, 0), (hidden, 0), (cell, 0), (mask, 0))]
    states, hiddens, cells, residuals = zip(*results, strict=True)
    by_kind = zip(zip(*residuals, strict=True), RESIDUAL_AXES, strict=True)
    states = jnp.concatenate(states)
    states = states if every else states[:, :0]
    joined = [jnp.concatenate(parts, axis) for parts, axis in by_kind]
    return [jnp.concatenate(hiddens), jnp.concatenate(cells), states, *joined]


def backward(
    hidden: Array,
    cell: Array,
    every: Array,
    mask: Array,
    tanh_gates: Array,
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
        mask: the mask of `forward`.
        tanh_gates: residual of `forward`: the tanh of the gates.
        cells: residual of `forward`: the cell state before each step.
        tanh_cells: residual of `forward`: the tanh of the cell state after each step.
        kernel: `(features, 4 x units)`.
        recurrent: `(units, 4 x units)`.

    Returns:
        The gradients of the inputs, of the initial hidden and of the initial cell state. The last result is the
        gradient of the gates before their activation, `(time, 4 x units, batch)`.
    """
    back = jnp.concatenate([kernel, recurrent])
    residuals = zip((tanh_gates, cells, tanh_cells), RESIDUAL_AXES[1:], strict=True)
    parts = _parts((hidden, 0), (cell, 0), (every, 0), (mask, 0), *residuals)
    results = [_backward_part(back, part[4:], *part[:4]) for part in parts]
    inputs, hiddens, states, slopes = zip(*results, strict=True)
    return [jnp.concatenate(inputs), jnp.concatenate(hiddens), jnp.concatenate(states), jnp.concatenate(slopes, 2)]


def weights(columns: Array, slopes: Array, *, replicas: int) -> list[Array]:
    """Return the gradients of kernel, bias and recurrent kernel.

    Args:
        columns: residual of `forward`: the columns.
        slopes: gradients of the gates before their activation.
        replicas: number of equal parts of the batch with a separate gradient, the first axis of each result.
    """
    if replicas > 1:
        split = [array.reshape(*array.shape[:2], replicas, -1) for array in (columns, slopes)]
        total = jnp.einsum("twrb,tgrb->rwg", *split)
    else:
        total = functools.reduce(jnp.add, [_product(*part) for part in _parts((columns, 2), (slopes, 2))])[None]
    features = columns.shape[1] - 1 - slopes.shape[1] // 4
    return [total[:, :features], total[:, features], total[:, features + 1 :]]


RESIDUAL_AXES = 2, 3, 2, 2
"""Index of the batch axis in each residual."""


XLA = Passes(
    RowFunction(forward, (0, 0, 0, 0, None, None, None), (0, 0, 0, *RESIDUAL_AXES), forward),
    RowFunction(backward, (0, 0, 0, 0, *RESIDUAL_AXES[1:], None, None), (0, 0, 0, 2), backward),
    RowFunction(weights, (2, 2), (0, 0, 0), weights),
    first_read=1,
)
"""The passes in the form that XLA's CPU compiler runs fast."""


def _parts(*whole: tuple[Array, int]) -> list[list[Any]]:
    """Split (array, row axis) pairs into parts of `PART_ROWS` rows; into one part if the rows do not divide."""
    first, row_axis = whole[0]
    rows = first.shape[row_axis]
    count = rows // PART_ROWS if rows % PART_ROWS == 0 else 1
    return [list(part) for part in zip(*(jnp.split(array, count, axis) for array, axis in whole), strict=True)]


def _product(columns: Array, slopes: Array) -> Array:
    columns, slopes = jnp.swapaxes(columns, 0, 1), jnp.swapaxes(slopes, 0, 1)
    return jnp.einsum("rk,gk->rg", columns.reshape(len(columns), -1), slopes.reshape(len(slopes), -1))


def _halved(kernel: Array, bias: Array, recurrent: Array) -> Array:
    """Return kernel, bias and recurrent kernel, halved for sigmoids, as `(4 x units, features + 1 + units)`."""
    factor = jnp.repeat(jnp.asarray([0.5, 0.5, 1.0, 0.5], kernel.dtype), len(recurrent))
    return (jnp.concatenate([kernel, bias[None], recurrent]) * factor).T


def _forward_part(product: Array, inputs: Array, hidden: Array, cell: Array, mask: Array) -> Any:
    (batch, time, _), units = inputs.shape, hidden.shape[1]
    # 1. Features first and batch last. A row of ones multiplies the bias.
    rows = jnp.transpose(inputs, (1, 2, 0))
    rows = jnp.concatenate([rows, jnp.ones_like(rows[:, :1])], 1)
    flat_mask = _flat_mask(mask, units)

    def step(t: Any, carry: Any) -> Any:
        hidden, cell, stacks = carry
        column = jnp.concatenate([rows[t], hidden.reshape(units, batch)])
        tanh_gates = jnp.tanh(product @ column).reshape(4, -1)
        update, forget, candidate, output = gates(tanh_gates)
        new_cell = forget * cell + update * candidate
        tanh_cell = jnp.tanh(new_cell)
        residuals = column, tanh_gates, cell, tanh_cell
        stacks = [_put(stack, residual, t) for stack, residual in zip(stacks, residuals, strict=True)]
        is_active = None if flat_mask is None else flat_mask[t]
        return _where(is_active, output * tanh_cell, hidden), _where(is_active, new_cell, cell), stacks

    # 2. Run the steps. Each stores its residuals in stacks.
    empty, size = _empty(inputs), units * batch
    stacks = [empty(time, product.shape[1], batch), empty(time, 4, size), empty(time, size), empty(time, size)]
    hidden, cell, stacks = lax.fori_loop(0, time, step, (hidden.T.reshape(-1), cell.T.reshape(-1), stacks))
    # 3. Column t has the hidden state before step t. So the columns from the second on, and the last state, are the
    # outputs.
    last = hidden.reshape(units, batch)
    every = jnp.concatenate([stacks[0][1:, -units:], last[None]])
    shapes = (time, -1, batch), (time, 4, units, batch), (time, units, batch), (time, units, batch)
    residuals = [stack.reshape(shape) for stack, shape in zip(stacks, shapes, strict=True)]
    return jnp.transpose(every, (2, 0, 1)), last.T, cell.reshape(units, batch).T, residuals


def _backward_part(back: Array, residuals: Any, hidden: Array, cell: Array, every: Array, mask: Array) -> Any:
    tanh_gates, cells, tanh_cells = residuals
    time, _, units, batch = tanh_gates.shape
    # 1. Flatten the residuals, so that the loop reads one contiguous row for each step.
    features, size = len(back) - units, units * batch
    outer = jnp.transpose(every, (1, 2, 0)).reshape(time, -1) if every.shape[1] else None
    flat_mask = _flat_mask(mask, units)
    flat = tanh_gates.reshape(time, 4, size), cells.reshape(time, size), tanh_cells.reshape(time, size)
    stacks = (*flat, flat_mask, outer)

    def step(i: Any, carry: Any) -> Any:
        hidden, cell, loaded, (inputs, slopes) = carry
        t = time - 1 - i
        # The previous iteration has loaded this step's operands; see the rule of this module.
        (direct_hidden, cell), gate_slopes = _step_back(hidden, cell, *loaded)
        for gate, slope in enumerate(gate_slopes):
            slopes = lax.dynamic_update_slice(slopes, slope[None, None], (t, gate, 0))
        column = back @ slopes[t].reshape(4 * units, batch)
        inputs = _put(inputs, column[:features], t)
        hidden = column[features:].reshape(-1)
        # Without a mask all of the hidden state's gradient comes through the product.
        hidden = hidden if flat_mask is None else hidden + direct_hidden
        # The last iteration loads step 0 again, and does not use it.
        return hidden, cell, _load(stacks, jnp.maximum(t - 1, 0)), (inputs, slopes)

    # 2. Run the steps backwards, from the operands of the last one.
    empty = _empty(tanh_gates)
    carry = hidden.T.reshape(-1), cell.T.reshape(-1), _load(stacks, time - 1)
    gradients = empty(time, features, batch), empty(time, 4, size)
    hidden, cell, _, (inputs, slopes) = lax.fori_loop(0, time, step, (*carry, gradients))
    # 3. Restore the caller's order of axes.
    slopes = slopes.reshape(time, 4 * units, batch)
    return jnp.transpose(inputs, (2, 0, 1)), hidden.reshape(units, -1).T, cell.reshape(units, -1).T, slopes


def _step_back(
    hidden: Array,
    cell: Array,
    tanh_gates: Array,
    cell_before: Array,
    tanh_cell: Array,
    is_active: Array | None,
    outer: Array | None,
) -> tuple[tuple[Array, Array], list[Array]]:
    """Compute the backward pass of one step, except the product.

    Args:
        hidden: gradient of the hidden state after the step from later steps, `(units x batch,)`.
        cell: gradient of the cell state after the step, `(units x batch,)`.
        tanh_gates: tanh of the gates, `(4, units x batch)`.
        cell_before: cell state before the step.
        tanh_cell: tanh of the cell state after the step.
        is_active: the mask; None for none.
        outer: gradient of the step's output; None for none.

    Returns:
        The part of the previous state's gradient that does not come through the product, and the gradients of the
        four gates before their activation.
    """
    hidden = hidden if outer is None else hidden + outer
    zero = jnp.zeros_like(hidden)
    new_hidden, new_cell = _where(is_active, hidden, zero), _where(is_active, cell, zero)
    update, forget, candidate, output = gates(tanh_gates)
    new_cell = new_cell + new_hidden * output * (1 - tanh_cell * tanh_cell)
    slopes = [
        new_cell * candidate * update * (1 - update),
        new_cell * cell_before * forget * (1 - forget),
        new_cell * update * (1 - candidate * candidate),
        new_hidden * tanh_cell * output * (1 - output),
    ]
    if is_active is None:
        return (zero, new_cell * forget), slopes
    return (jnp.where(is_active, zero, hidden), new_cell * forget + jnp.where(is_active, zero, cell)), slopes


def _empty(like: Array) -> Callable[..., Array]:
    """Return a function that makes arrays to be filled.

    They depend on an argument, `like`: XLA would make a single array of a constant, and copy it for each loop.
    """
    zero = like[(0,) * like.ndim] * 0
    return lambda *shape: jnp.broadcast_to(zero, shape)


def _flat_mask(mask: Array, units: int) -> Array | None:
    """Return a mask `(batch, time)` as booleans `(time, units x batch)`; None if it has no time axis."""
    batch, time = mask.shape
    return jnp.broadcast_to(mask.T[:, None], (time, units, batch)).reshape(time, -1) if time else None


def gates(tanh_gates: Any) -> tuple[Array, Array, Array, Array]:
    """Return the input, forget, candidate and output gate, from the tanh of each."""
    update, forget, candidate, output = tanh_gates
    return 0.5 * update + 0.5, 0.5 * forget + 0.5, candidate, 0.5 * output + 0.5


def _load(stacks: tuple[Array | None, ...], t: Any) -> Any:
    return jax.tree.map(lambda stack: stack[t], stacks)


def _put(stack: Array, entry: Array, t: Any) -> Array:
    return lax.dynamic_update_index_in_dim(stack, entry, t, 0)


def _where(is_active: Array | None, new: Array, old: Array) -> Array:
    return new if is_active is None else jnp.where(is_active, new, old)
