"""Rules for gather and scatter: pads pick and change nothing that counts.

Rule: row i of the real rows is entry i of an axis over rows, so an index that a step computes from real rows finds the
row that it would find among the real rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from anytpu.strategy.padded.axes import Fill, RowAxis, Value
from anytpu.strategy.padded.operation import Action, Operation, Outcome, RealRows
from anytpu.strategy.padded.reductions import check_masks


def gather(operation: Operation) -> Outcome:
    """Pick slices: a row axis is kept whole, or indexed by one index for each row."""
    operand, indices = operation.values
    numbers = operation.params["dimension_numbers"]
    sizes = operation.param_sizes("slice_sizes")
    batch = [axis for axis in indices.axes[:-1]]
    offsets: list[RowAxis | None] = []
    for position, axis in enumerate(operand.axes):
        if position in numbers.operand_batching_dims:
            at = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(position)]
            batch[at] = operation.joined([axis, batch[at]])
        elif position in numbers.collapsed_slice_dims:
            if axis is not None:
                _check_indexed(operation, axis, batch)
        elif axis is not None and sizes[position] != operation.in_sizes(0)[position]:
            operation.refuse("takes some of the rows only")
        else:
            offsets.append(axis)
    if indices.axes and indices.axes[-1] is not None:
        operation.refuse("indexes with rows in the place of axes")
    rest, kept = iter(batch), iter(offsets)
    rank = len(operation.out_sizes())
    axes = [next(kept) if position in numbers.offset_dims else next(rest) for position in range(rank)]
    value = Value(tuple(axis if axis is None else RowAxis(axis.segments) for axis in axes))
    # The pads that the step has given a value are entries like others.
    indexed = {
        column: axis
        for column, position in enumerate(numbers.start_index_map)
        if (axis := operand.axes[position]) is not None
        and axis.fill is Fill.ANY
        and position in numbers.collapsed_slice_dims
    }
    return [value], _within_rows(operation, indexed) if indexed else None


def _within_rows(operation: Operation, indexed: dict[int, RowAxis]) -> Action:
    """Return the action that treats indices behind the real rows as those behind an axis of the real rows alone.

    Args:
        operation: a gather.
        indexed: the row axes that are indexed, by column of the indices.
    """
    is_filled = operation.params["mode"] is lax.GatherScatterMode.FILL_OR_DROP

    def action(real: RealRows, given: list[Any]) -> Sequence[Any]:
        rows, where = given
        highest = jnp.iinfo(where.dtype).max
        columns = []
        for column in range(where.shape[-1]):
            index = where[..., column]
            if (axis := indexed.get(column)) is not None and axis.each is not None:
                limit = real.rows * axis.each
                behind = jnp.asarray(highest if is_filled else jnp.maximum(limit - 1, 0), index.dtype)
                index = jnp.where(index < limit, index, behind)
            columns.append(index)
        # The indices may no longer be in order, or each be there once.
        return operation.bound([rows, jnp.stack(columns, -1)], unique_indices=False, indices_are_sorted=False)

    return action


def _check_indexed(operation: Operation, axis: RowAxis, batch: Sequence[RowAxis | None]) -> None:
    if axis.fill is Fill.ANY and not any(batch):
        operation.refuse("takes some of the rows only")
    if axis.each is None:
        operation.refuse("indexes rows that are there more than once")
    check_masks(operation, [axis], "indexes")


def scatter(operation: Operation) -> Outcome:
    """Write, or add, slices: what belongs to pads is dropped."""
    operand, indices, updates = operation.values
    numbers = operation.params["dimension_numbers"]
    # 1. Slices: their row axes are those of the operand, whole.
    inner = [
        position
        for position in range(len(operand.axes))
        if position not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    ]
    axes = [*operand.axes]
    for position, at in zip(inner, numbers.update_window_dims, strict=True):
        if operand.axes[position] is None and updates.axes[at] is None:
            continue
        if operation.in_sizes(0)[position] != operation.in_sizes(2)[at]:
            operation.refuse("changes some of the rows only")
        axes[position] = operation.joined([operand.axes[position], updates.axes[at]])
    # 2. One slice for each index: the row axes of the indices.
    if indices.axes and indices.axes[-1] is not None:
        operation.refuse("indexes with rows in the place of axes")
    outer = [position for position in range(len(updates.axes)) if position not in numbers.update_window_dims]
    dropped: list[tuple[int, RowAxis]] = []
    for position, at in enumerate(outer):
        axis = operation.joined([indices.axes[position], updates.axes[at]])
        if axis is None:
            continue
        if position in numbers.scatter_indices_batching_dims:
            home = numbers.operand_batching_dims[numbers.scatter_indices_batching_dims.index(position)]
            axes[home] = operation.joined([axes[home], axis])
        else:
            dropped.append((position, axis.filled(Fill.ANY)))
    for position in numbers.inserted_window_dims:
        axis = operand.axes[position]
        if axis is not None and axis.each is None:
            operation.refuse("changes rows that are there more than once")
    filled = tuple(axis if axis is None else RowAxis(axis.segments) for axis in axes)
    changes_rows = any(operand.axes[position] is not None for position in numbers.inserted_window_dims)
    if operation.params["mode"] is lax.GatherScatterMode.CLIP and (dropped or changes_rows):
        operation.refuse("moves indices that are out of bounds to the nearest row")
    if not dropped:
        return [Value(filled)], None

    def action(real: RealRows, given: list[Any]) -> Sequence[Any]:
        where = given[1]
        for position, axis in dropped:
            where = real.replaced(where, position, axis, _nowhere)
        # An index out of bounds changes nothing.
        changed = {"mode": lax.GatherScatterMode.FILL_OR_DROP, "unique_indices": False, "indices_are_sorted": False}
        return operation.bound([given[0], where, given[2]], **changed)

    return [Value(filled)], action


def _nowhere(dtype: Any) -> Any:
    return jnp.iinfo(dtype).max


RULES: dict[str, Callable[[Operation], Outcome]] = {
    "gather": gather,
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub", "scatter_add"), scatter
    ),
}
