"""Rules for operations along one axis: sums, maxima, positions of maxima, running sums, sorting, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from anytpu.strategy.padded.axes import Fill, RowAxis, Value
from anytpu.strategy.padded.operation import Action, Operation, Outcome, RealRows, zero


def lowest(dtype: Any) -> Any:
    """Return a number that no number of a dtype is below."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return -np.inf
    return False if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """Return a number that no number of a dtype is above."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.inf
    return True if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).max


def one(dtype: Any) -> Any:
    """Return one, or True."""
    return True if jnp.issubdtype(dtype, jnp.bool_) else 1


def ones(dtype: Any) -> Any:
    """Return the number whose bits are all set, or True."""
    return True if jnp.issubdtype(dtype, jnp.bool_) else jnp.array(-1).astype(dtype)


def last(dtype: Any) -> Any:
    """Return a number that sorting puts behind all others."""
    return np.nan if jnp.issubdtype(dtype, jnp.inexact) else highest(dtype)


_IDENTITIES: dict[str, Callable[[Any], Any]] = {
    "reduce_sum": zero,
    "reduce_max": lowest,
    "reduce_min": highest,
    "reduce_prod": one,
    "reduce_and": ones,
    "reduce_or": zero,
    "reduce_xor": zero,
    "argmax": lowest,
    "argmin": highest,
    "cumsum": zero,
    "cumprod": one,
    "cummax": lowest,
    "cummin": highest,
    "cumlogsumexp": lowest,
}
_KEEP_ZERO = frozenset(["reduce_sum", "reduce_or", "reduce_and", "reduce_max", "reduce_min"])
_POSITIONS = frozenset(["argmax", "argmin"])


def masked(operation: Operation, rows: Sequence[tuple[int, RowAxis]], operands: Sequence[int], fill: Any) -> Action:
    """Return the action that gives the pads of some operands a value, and computes the operation."""

    def action(real: RealRows, given: list[Any]) -> Sequence[Any]:
        given = list(given)
        for index in operands:
            for position, axis in rows:
                given[index] = real.replaced(given[index], position, axis, fill)
        return operation.bound(given)

    return action


def check_masks(operation: Operation, axes: Sequence[RowAxis | None], does: str = "reduces") -> None:
    """Refuse what would be right if it were masked, where a number of rows cannot be told from another number.

    A mean is a sum that is divided by a constant. In a step that runs for one number of rows only, nobody knows what
    that constant counts.
    """
    if operation.rooms.second is None and any(axis is not None and axis.fill is Fill.ANY for axis in axes):
        operation.refuse(
            f"{does} the rows. The step {operation.rooms.failure}, so a number of rows in it cannot be told from other "
            "numbers"
        )


def reduction(operation: Operation) -> Outcome:
    """Reduce axes, the pads being replaced by what changes nothing."""
    operand, reduced = operation.values[0], operation.params["axes"]
    rows = [(position, axis) for position, axis in operand.rows() if position in reduced]
    kept = [axis for position, axis in enumerate(operand.axes) if position not in reduced]
    value = Value(tuple(kept) if operation.name in _KEEP_ZERO else _chosen(kept))
    check_masks(operation, [axis for _, axis in rows])
    if operation.name in _POSITIONS and any(axis.each is None for _, axis in rows):
        operation.refuse("finds a position among rows that are there more than once")
    fill = _IDENTITIES[operation.name]
    needed = [(position, axis) for position, axis in rows if not (axis.fill is Fill.ZERO and fill is zero)]
    if operation.rooms.second is None:
        needed = []
    return [value], masked(operation, needed, [0], fill) if needed else None


def running(operation: Operation) -> Outcome:
    """Run along an axis, the pads being replaced by what changes nothing."""
    operand, along = operation.values[0], operation.params["axis"]
    axis = operand.axes[along]
    if axis is None:
        return [Value(_chosen(operand.axes))], None
    check_masks(operation, [axis])
    axes = [*operand.axes]
    axes[along] = RowAxis(axis.segments)
    return [Value(tuple(axes))], masked(operation, [(along, axis)], [0], _IDENTITIES[operation.name])


def _chosen(axes: Sequence[RowAxis | None]) -> tuple[RowAxis | None, ...]:
    return tuple(axis if axis is None else axis.filled(min(axis.fill, Fill.CHOSEN)) for axis in axes)


def sort(operation: Operation) -> Outcome:
    """Sort, the pads coming last."""
    along = operation.params["dimension"]
    rank = len(operation.out_sizes())
    axes = [operation.joined([value.axes[position] for value in operation.values]) for position in range(rank)]
    axis = axes[along]
    if axis is None:
        return [Value(_chosen(axes))] * len(operation.values), None
    check_masks(operation, [axis])
    if axis.each is None:
        operation.refuse("sorts rows that are there more than once")
    axes[along] = RowAxis(axis.segments)

    def action(real: RealRows, given: list[Any]) -> Sequence[Any]:
        keys = operation.params["num_keys"]
        filled = [real.replaced(key, along, RowAxis(axis.segments), last) for key in given[:keys]]
        return lax.sort([*filled, *given[keys:]], dimension=along, is_stable=True, num_keys=keys)

    return [Value(tuple(axes))] * len(operation.values), action


def window(operation: Operation) -> Outcome:
    """Reduce windows that take in one row each."""
    rank = len(operation.out_sizes())
    axes = [operation.joined([value.axes[p] for value in operation.values if value.axes]) for p in range(rank)]
    for position, axis in enumerate(axes):
        if axis is not None and not _takes_each_alone(operation.params, position):
            operation.refuse("reduces windows of rows")
    return [Value(_chosen(axes))] * len(operation.equation.outvars), None


def _takes_each_alone(params: dict[str, Any], position: int) -> bool:
    """Say whether the windows along an axis are its entries."""
    sizes = [params.get(name) for name in ("window_dimensions", "window_strides", "base_dilation", "window_dilation")]
    padding = params.get("padding")
    return all(size is None or size[position] == 1 for size in sizes) and (
        padding is None or tuple(padding[position]) == (0, 0)
    )


def top(operation: Operation) -> Outcome:
    """Take the largest entries along an axis that is not over rows."""
    operand = operation.values[0]
    along = operation.params.get("axis", -1) % len(operand.axes)
    axis = operand.axes[along]
    if axis is not None and axis.fill is Fill.ANY:
        operation.refuse("takes some of the rows only")
    axes = [*_chosen(operand.axes)]
    axes[along] = None
    return [Value(tuple(axes))] * 2, None


RULES: dict[str, Callable[[Operation], Outcome]] = {
    **{name: running if name.startswith("cum") else reduction for name in _IDENTITIES},
    "sort": sort,
    "top_k": top,
    **dict.fromkeys(
        (
            "reduce_window",
            "reduce_window_max",
            "reduce_window_min",
            "reduce_window_sum",
            "select_and_gather_add",
            "select_and_scatter",
            "select_and_scatter_add",
        ),
        window,
    ),
}
