"""The forward and backward loops of an LSTM, in the form that XLA's CPU compiler runs fast.

Idea: the features are the first axis and the batch is the last, so the values of a gate are contiguous. A step is one
matrix product of the weights and a column: the inputs, a 1 for the bias, and the hidden state. A sigmoid is computed as
`tanh(x / 2) / 2 + 1 / 2`, which XLA:CPU vectorises. Halving is exact, so the weights are halved before the loop. The
forward pass keeps the operands of the product, the tanhs and the cells. The weights' gradient is one product after the
backward loop.

Under `vmap` the rows of replicas that share weights are one batch (`replica_rows`).

Rule: a step does not compute with a slice that it reads itself: XLA:CPU would compute the start of the slice for each
element, and would not vectorise. The forward step computes its operands; the backward step finds them in the carry,
where the previous step put them. docs/decisions/0004 lists the other forms that were measured.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from anytpu.engine.replica_rows import RowFunction

Kept = tuple[Array, Array, Array, Array]
"""Of each step: what went into the product `(time, features + 1 + units, batch)`, tangents of the gates
`(time, 4, units, batch)`, cell before it and tangent of the cell after it, `(time, units, batch)`."""

PART = 32
"""The rows of a part of the batch, two vector registers of float32: its steps and their gradients stay in the cache."""


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
    """Run an LSTM, and keep what the backward pass needs.

    Args:
        inputs: `(batch, time, features)`.
        hidden: the hidden state before the first step, `(batch, units)`.
        cell: the cell state before it.
        mask: `(batch, time)`, False where the state stays as it is; `(batch, 0)` where it never does.
        kernel: `(features, 4 x units)`.
        bias: `(4 x units,)`.
        recurrent: `(units, 4 x units)`.
        every: whether the hidden states of all steps are wanted; else none are returned, `(batch, 0, units)`.
        keeps: whether what is kept is wanted. XLA removes what nobody uses.

    Returns:
        The last hidden and cell state, the hidden states `(batch, time, units)`, and what is kept.
    """
    product = _halved(kernel, bias, recurrent)
    ran = [_forward_part(product, *part) for part in _parts((inputs, 0), (hidden, 0), (cell, 0), (mask, 0))]
    states, hiddens, cells, kept = zip(*ran, strict=True)
    axes = zip(zip(*kept, strict=True), KEPT_AXES, strict=True)
    states = jnp.concatenate(states)
    states = states if every else states[:, :0]
    return [jnp.concatenate(hiddens), jnp.concatenate(cells), states, *(jnp.concatenate(*one) for one in axes)]


def backward(
    hidden: Array,
    cell: Array,
    every: Array,
    mask: Array,
    tangents: Array,
    cells: Array,
    cell_tangents: Array,
    kernel: Array,
    recurrent: Array,
) -> list[Array]:
    """Go back over an LSTM.

    Args:
        hidden: the gradient of the last hidden state.
        cell: the gradient of the last cell state.
        every: the gradient of the hidden states, `(batch, time, units)`; `(batch, 0, units)` for none.
        mask: what `forward` got.
        tangents: what `forward` kept of the gates.
        cells: what it kept of the cells.
        cell_tangents: what it kept of their tangents.
        kernel: `(features, 4 x units)`.
        recurrent: `(units, 4 x units)`.

    Returns:
        The gradients of inputs and initial state, and those of the gates' sums, `(time, 4 x units, batch)`.
    """
    back = jnp.concatenate([kernel, recurrent])
    kept = zip((tangents, cells, cell_tangents), KEPT_AXES[1:], strict=True)
    parts = _parts((hidden, 0), (cell, 0), (every, 0), (mask, 0), *kept)
    ran = [_backward_part(back, part[4:], *part[:4]) for part in parts]
    inputs, hiddens, states, slopes = zip(*ran, strict=True)
    return [jnp.concatenate(inputs), jnp.concatenate(hiddens), jnp.concatenate(states), jnp.concatenate(slopes, 2)]


def weights(rows: Array, slopes: Array, *, replicas: int) -> list[Array]:
    """Return the gradients of kernel, bias and recurrent kernel, below one another.

    Args:
        rows: what `forward` kept of what went into the products.
        slopes: the gradients of the gates' sums.
        replicas: equal parts of the batch that have a gradient each.

    Returns:
        `(replicas, features + 1 + units, 4 x units)`.
    """
    if replicas > 1:
        split = [one.reshape(*one.shape[:2], replicas, -1) for one in (rows, slopes)]
        return [jnp.einsum("twrb,tgrb->rwg", *split)]
    products = [_product(*part) for part in _parts((rows, 2), (slopes, 2))]
    return [functools.reduce(jnp.add, products)[None]]


KEPT_AXES = 2, 3, 2, 2
"""Where the batch is in what is kept."""


@dataclasses.dataclass(frozen=True)
class Passes:
    """An LSTM in one implementation.

    Attributes:
        forward: operands and first three results as `forward` has them; then what goes into `weights`, and three arrays
            that go into `backward`.
        backward: operands as `backward` has them; the last result goes into `weights`.
        weights: makes the gradient of the weights.
    """

    forward: RowFunction
    backward: RowFunction
    weights: RowFunction


XLA = Passes(
    RowFunction(forward, (0, 0, 0, 0, None, None, None), (0, 0, 0, *KEPT_AXES), forward),
    RowFunction(backward, (0, 0, 0, 0, *KEPT_AXES[1:], None, None), (0, 0, 0, 2), backward),
    RowFunction(weights, (2, 2), (0,), weights),
)
"""As XLA's CPU compiler runs it fast."""


def _parts(*whole: tuple[Array, int]) -> list[list[Any]]:
    """Cut arrays along their axes of rows, into parts of `PART` rows where that is possible."""
    first, axis = whole[0]
    count = first.shape[axis] // PART if first.shape[axis] % PART == 0 else 1
    return [list(part) for part in zip(*(jnp.split(one, count, along) for one, along in whole), strict=True)]


def _product(rows: Array, slopes: Array) -> Array:
    rows, slopes = (jnp.swapaxes(one, 0, 1) for one in (rows, slopes))
    return jnp.einsum("rk,gk->rg", rows.reshape(len(rows), -1), slopes.reshape(len(slopes), -1))


def _halved(kernel: Array, bias: Array, recurrent: Array) -> Array:
    """Return kernel, bias and recurrent kernel, halved for sigmoids, as `(4 x units, features + 1 + units)`."""
    factor = jnp.repeat(jnp.asarray([0.5, 0.5, 1.0, 0.5], kernel.dtype), len(recurrent))
    return (jnp.concatenate([kernel, bias[None], recurrent]) * factor).T


def _forward_part(product: Array, inputs: Array, hidden: Array, cell: Array, mask: Array) -> Any:
    (batch, time, _), units = inputs.shape, hidden.shape[1]
    rows = jnp.transpose(inputs, (1, 2, 0))
    rows = jnp.concatenate([rows, jnp.ones_like(rows[:, :1])], 1)
    keep = _flat_mask(mask, units)

    def step(t: Any, carry: Any) -> Any:
        hidden, cell, kept = carry
        both = jnp.concatenate([rows[t], hidden.reshape(units, batch)])
        tangents = jnp.tanh(product @ both).reshape(4, -1)
        into, forget, candidate, out = gates(tangents)
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
    shapes = (time, -1, batch), (time, 4, units, batch), (time, units, batch), (time, units, batch)
    kept = [one.reshape(shape) for one, shape in zip(kept, shapes, strict=True)]
    return jnp.transpose(every, (2, 0, 1)), last.T, cell.reshape(units, batch).T, kept


def _backward_part(back: Array, kept: Any, hidden: Array, cell: Array, every: Array, mask: Array) -> Any:
    time, _, units, batch = kept[0].shape
    features, n = len(back) - units, units * batch
    outer = jnp.transpose(every, (1, 2, 0)).reshape(time, -1) if every.shape[1] else None
    tangents, *others = kept
    flat = tangents.reshape(time, 4, n), *(one.reshape(time, n) for one in others)
    keep = _flat_mask(mask, units)
    stacks = (*flat, keep, outer)

    def step(i: Any, carry: Any) -> Any:
        hidden, cell, loaded, (inputs, slopes) = carry
        t = time - 1 - i
        earlier, of_gates = _step_back(hidden, cell, *loaded)
        for gate, slope in enumerate(of_gates):
            slopes = lax.dynamic_update_slice(slopes, slope[None, None], (t, gate, 0))
        both = back @ slopes[t].reshape(4 * units, batch)
        inputs = _put(inputs, both[:features], t)
        hidden = both[features:].reshape(-1) + earlier[0] if keep is not None else both[features:].reshape(-1)
        return hidden, earlier[1], _load(stacks, jnp.maximum(t - 1, 0)), (inputs, slopes)

    empty = _empty(tangents)
    carry = hidden.T.reshape(-1), cell.T.reshape(-1), _load(stacks, time - 1)
    gradients = empty(time, features, batch), empty(time, 4, n)
    hidden, cell, _, (inputs, slopes) = lax.fori_loop(0, time, step, (*carry, gradients))
    slopes = slopes.reshape(time, 4 * units, batch)
    return jnp.transpose(inputs, (2, 0, 1)), hidden.reshape(units, -1).T, cell.reshape(units, -1).T, slopes


def _step_back(
    hidden: Array, cell: Array, tangents: Array, before: Array, tangent: Array, keep: Array | None, outer: Array | None
) -> tuple[tuple[Array, Array], list[Array]]:
    """Compute the backward pass of one step, except the product.

    Args:
        hidden: the gradient of the hidden state after the step, as far as later steps give it; `(units x batch,)`.
        cell: the gradient of the cell state after the step.
        tangents: the tangents of the gates.
        before: the cell state before the step.
        tangent: the tangent of the cell state after it.
        keep: the mask; None for none.
        outer: the gradient of the step's output; None for none.

    Returns:
        The part of the previous state's gradient that does not come through the product, and the gradients of the
        four sums.
    """
    hidden = hidden if outer is None else hidden + outer
    zero = jnp.zeros_like(hidden)
    here, inner = _where(keep, hidden, zero), _where(keep, cell, zero)
    into, forget, candidate, out = gates(tangents)
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


def _flat_mask(mask: Array, units: int) -> Array | None:
    """Return a mask `(batch, time)` as booleans `(time, units x batch)`; None for none."""
    batch, time = mask.shape
    return jnp.broadcast_to(mask.T[:, None], (time, units, batch)).reshape(time, -1) if time else None


def gates(tangents: Any) -> tuple[Array, Array, Array, Array]:
    """Return input, forget, candidate and output gate out of their tangents."""
    into, forget, candidate, out = tangents
    return 0.5 * into + 0.5, 0.5 * forget + 0.5, candidate, 0.5 * out + 0.5


def _load(stacks: tuple[Array | None, ...], t: Any) -> Any:
    return jax.tree.map(lambda stack: stack[t], stacks)


def _put(stack: Array, one: Array, t: Any) -> Array:
    return lax.dynamic_update_index_in_dim(stack, one, t, 0)


def _where(keep: Array | None, new: Array, old: Array) -> Array:
    return new if keep is None else jnp.where(keep, new, old)
