"""Rules for operations that move entries, or create them: reshape, transpose, concatenate, slice, random numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from anytpu.strategy.padded.axes import AbstractValue, AxisSegment, PadState, RowAxis, axis_of
from anytpu.strategy.padded.operation import Outcome, Rule, Sizes, StepOperation

_Axes = Sequence[RowAxis | None]


def _result(operation: StepOperation, axes: _Axes) -> Outcome:
    """Return the outcome of an operation that moves the entries of its first operand."""
    return [AbstractValue(tuple(axes), operation.values[0].is_zero)], None


def broadcast(operation: StepOperation) -> Outcome:
    """Keep the mapped axes; the entries of a new axis are all equal."""
    operand = operation.values[0]
    dimensions = operation.params["broadcast_dimensions"]
    axes: list[RowAxis | None] = []
    for dimension, sizes in enumerate(operation.out_sizes()):
        source = dimensions.index(dimension) if dimension in dimensions else None
        axis = None if source is None else operand.axes[source]
        is_new = source is None or operation.in_sizes(0)[source] != sizes
        axes.append(operation.new_axis(sizes, is_uniform=True) if axis is None and is_new else axis)
    return _result(operation, axes)


def iota(operation: StepOperation) -> Outcome:
    """Create axes; the entries along one of them count up."""
    counting = operation.params["dimension"]
    sizes = operation.out_sizes()
    axes = [operation.new_axis(size, is_uniform=dimension != counting) for dimension, size in enumerate(sizes)]
    return [AbstractValue(tuple(axes))], None


def random_numbers(operation: StepOperation) -> Outcome:
    """Keep the axes of the keys; new axes hold independent random numbers."""
    return _random_results(operation, operation.values[0].axes)


def random_bit_generator(operation: StepOperation) -> Outcome:
    """Create axes of independent random numbers."""
    if operation.values[0].has_rows:
        operation.refuse("takes a key that depends on the rows")
    return _random_results(operation, ())


def _random_results(operation: StepOperation, kept: _Axes) -> Outcome:
    results = []
    for index in range(len(operation.equation.outvars)):
        sizes = operation.out_sizes(index)
        new = [operation.new_axis(size, is_uniform=True) for size in sizes[len(kept) :]]
        results.append(AbstractValue((*kept[: len(sizes)], *new)))
    return results, None


def convert_key(operation: StepOperation) -> Outcome:
    """Keep the leading axes of keys that gain or lose their last axis, also for several operands."""
    rank = len(operation.out_sizes())
    padded = [(*value.axes, *[None] * rank)[:rank] for value in operation.values if value.axes]
    lost = [axis for value in operation.values for axis in value.axes[rank:]]
    if any(lost):
        operation.refuse("may mix the rows with the pads")
    axes = [operation.aligned([value[dimension] for value in padded]) for dimension in range(rank)]
    return [AbstractValue(tuple(axes))], None


def transpose(operation: StepOperation) -> Outcome:
    """Permute the axes."""
    return _result(operation, [operation.values[0].axes[source] for source in operation.params["permutation"]])


def squeeze(operation: StepOperation) -> Outcome:
    """Drop axes of size 1."""
    operand, dropped = operation.values[0], operation.params["dimensions"]
    if any(operand.axes[dimension] for dimension in dropped):
        operation.refuse("takes one row")
    return _result(operation, [axis for dimension, axis in enumerate(operand.axes) if dimension not in dropped])


def expand_dims(operation: StepOperation) -> Outcome:
    """Insert axes of size 1."""
    remaining, rank = iter(operation.values[0].axes), len(operation.out_sizes())
    added = {dimension % rank for dimension in operation.params["dimensions"]}
    return _result(operation, [None if dimension in added else next(remaining) for dimension in range(rank)])


def reverse(operation: StepOperation) -> Outcome:
    """Keep the axes; refuse reversed rows, because the pads would come first."""
    operand = operation.values[0]
    if any(operand.axes[dimension] is not None for dimension in operation.params["dimensions"]):
        operation.refuse("reverses the rows, which puts the pads first")
    return [operand], None


def reshape(operation: StepOperation) -> Outcome:
    """Keep, merge or split the row axes."""
    operand = operation.values[0]
    if not operand.has_rows:
        return _result(operation, [operation.new_axis(size, is_uniform=False) for size in operation.out_sizes()])
    axes: list[RowAxis | None] = [None] * len(operation.out_sizes())
    for before, after in _reshape_groups(operation):
        over_rows = [dimension for dimension in before if operand.axes[dimension] is not None]
        if len(over_rows) > 1:
            operation.refuse("merges two axes of rows")
        if over_rows:
            dimension, axis = _reshaped(operation, before, after, over_rows[0])
            axes[dimension] = axis
    return _result(operation, axes)


def _reshape_groups(operation: StepOperation) -> list[tuple[range, range]]:
    """Return the dimensions of the operand and of the result that hold the same entries, in the smallest groups."""
    before, after = operation.in_sizes(0), operation.out_sizes()
    groups, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        start_i, start_j = i, j
        left: Sizes = (1,) * len(operation.context.traced_rows)
        right = left
        # Take dimensions of the side with the smaller product, from both sides, until the products are equal.
        while (i, j) == (start_i, start_j) or left != right:
            left_is_next = left[0] <= right[0] and (i == start_i or j > start_j)
            if i < len(before) and (left_is_next or j == len(after)):
                left = tuple(a * b for a, b in zip(left, before[i], strict=True))
                i += 1
            elif j < len(after):
                right = tuple(a * b for a, b in zip(right, after[j], strict=True))
                j += 1
            else:
                break
        groups.append((range(start_i, i), range(start_j, j)))
    return groups


def _reshaped(operation: StepOperation, before: range, after: range, source: int) -> tuple[int, RowAxis]:
    """Return the dimension and the axis that the row axis of a group becomes."""
    axis = operation.values[0].axes[source]
    assert axis is not None
    in_sizes, out_sizes = operation.in_sizes(0), operation.out_sizes()
    # The row axis is merged with the other axes of its group; then the result splits the merged axis.
    outer, inner = _sizes_around(in_sizes, before, source)
    merged = axis if outer == inner == 1 else axis.merged(inner, outer)
    # The row axis of the result is the only one whose size depends on the number of rows.
    growing = [dimension for dimension in after if len(set(out_sizes[dimension])) > 1]
    if operation.context.other_rows is None:
        growing = [dimension for dimension in after if out_sizes[dimension] == in_sizes[source]][:1]
    if len(growing) != 1:
        operation.refuse("takes the rows apart")
    outer, inner = _sizes_around(out_sizes, after, growing[0])
    return growing[0], _split(operation, merged, outer, inner)


def _sizes_around(sizes: list[Sizes], group: range, dimension: int) -> tuple[int, int]:
    """Return the products of the sizes of a group's dimensions before and behind one of them."""
    outer = math.prod(sizes[other][0] for other in group if other < dimension)
    return outer, math.prod(sizes[other][0] for other in group if other > dimension)


def _split(operation: StepOperation, axis: RowAxis, outer: int, inner: int) -> RowAxis:
    """Return the middle axis of a row axis that is split into three, with the sizes of the outer and inner ones."""
    if outer == inner == 1:
        return axis
    segments = axis.segments[: len(axis.segments) // outer]
    divides = all(segment.per_row % inner == 0 and segment.fixed % inner == 0 for segment in segments)
    if segments * outer != axis.segments or not divides:
        operation.refuse("takes the rows apart")
    split = axis_of([AxisSegment(segment.per_row // inner, segment.fixed // inner) for segment in segments], axis.pads)
    return dataclasses.replace(split, is_uniform=axis.is_uniform)


def concatenate(operation: StepOperation) -> Outcome:
    """Concatenate the segments of one axis, and align the other axes."""
    along = operation.params["dimension"]
    axes = []
    for dimension in range(len(operation.out_sizes())):
        parts = [value.axes[dimension] for value in operation.values]
        if dimension != along:
            axes.append(operation.aligned(parts))
        elif not any(parts):
            axes.append(None)
        else:
            segments: list[AxisSegment] = []
            for index, axis in enumerate(parts):
                size = operation.in_sizes(index)[dimension][0]
                segments.extend(axis.segments if axis is not None else [AxisSegment(0, size)])
            axes.append(axis_of(segments, min((axis.pads for axis in parts if axis), default=PadState.UNMASKED)))
    return [AbstractValue(tuple(axes))], None


def pad(operation: StepOperation) -> Outcome:
    """Add entries before and behind an axis; they belong to rows if their number depends on the number of rows."""
    configs = [operation.params["padding_config"]]
    if operation.other is not None:
        configs.append(operation.other_param("padding_config"))
    axes = []
    for dimension, axis in enumerate(operation.values[0].axes):
        lows, highs, gaps = zip(*(config[dimension] for config in configs), strict=True)
        if axis is None and len(set(lows)) == len(set(highs)) == 1:
            axes.append(None)
            continue
        if (any(lows) or any(highs)) and (any(gaps) or min(*lows, *highs) < 0):
            operation.refuse("puts pads between the rows or takes rows away")
        middle = (AxisSegment(0, operation.in_sizes(0)[dimension][0]),) if axis is None else axis.segments
        before, after = (_added_segments(operation, tuple(map(int, sizes))) for sizes in (lows, highs))
        pads = PadState.UNMASKED if axis is None or not operation.values[1].is_zero else axis.pads
        axes.append(axis_of((*before, *middle, *after), pads))
    return [AbstractValue(tuple(axes))], None


def _added_segments(operation: StepOperation, sizes: Sizes) -> tuple[AxisSegment, ...]:
    axis = operation.new_axis(sizes, is_uniform=True)
    return (AxisSegment(0, sizes[0]),) if axis is None else axis.segments


def stack(operation: StepOperation) -> Outcome:
    """Stack values along a new axis."""
    along, rank = operation.params["axis"], len(operation.out_sizes())
    axes = [operation.aligned([value.axes[index] for value in operation.values]) for index in range(rank - 1)]
    return [AbstractValue((*axes[:along], None, *axes[along:]))], None


def unstack(operation: StepOperation) -> Outcome:
    """Split a value into its entries along an axis."""
    operand, along = operation.values[0], operation.params["axis"]
    if operand.axes[along] is not None:
        operation.refuse("takes the rows apart")
    value = AbstractValue((*operand.axes[:along], *operand.axes[along + 1 :]), operand.is_zero)
    return [value] * len(operation.equation.outvars), None


def tile(operation: StepOperation) -> Outcome:
    """Repeat a value along its axes."""
    axes: list[RowAxis | None] = []
    for dimension, (axis, count) in enumerate(
        zip(operation.values[0].axes, operation.param_sizes("reps"), strict=True)
    ):
        if axis is None:
            is_uniform = operation.in_sizes(0)[dimension][0] == 1
            axes.append(operation.new_axis(operation.out_sizes()[dimension], is_uniform=is_uniform))
        elif len(set(count)) > 1:
            operation.refuse("repeats the rows as often as there are rows")
        else:
            axes.append(axis if count[0] == 1 else axis.merged(1, count[0]))
    return _result(operation, axes)


def static_slice(operation: StepOperation) -> Outcome:
    """Slice at constant indices: a row axis is kept complete, or cut between its segments."""
    operand = operation.values[0]
    starts, limits = operation.param_sizes("start_indices"), operation.param_sizes("limit_indices")
    strides = operation.params["strides"] or (1,) * len(operand.axes)
    axes = [
        None if axis is None else _between(operation, axis, start, limit, stride)
        for axis, start, limit, stride in zip(operand.axes, starts, limits, strides, strict=True)
    ]
    return _result(operation, axes)


def _between(operation: StepOperation, axis: RowAxis, start: Sizes, limit: Sizes, stride: int) -> RowAxis | None:
    bounds = axis.bounds(*operation.context.traced_rows)
    if stride != 1 or start not in bounds or limit not in bounds:
        operation.refuse("takes some of the rows only")
    segments = axis.segments[bounds.index(start) : bounds.index(limit)]
    if not any(segment.per_row for segment in segments):
        return None
    return dataclasses.replace(axis_of(segments, axis.pads), is_uniform=axis.is_uniform)


def split(operation: StepOperation) -> Outcome:
    """Split a value into several along an axis."""
    operand, along = operation.values[0], operation.params["axis"]
    axis, start, results = operand.axes[along], (0,) * len(operation.context.traced_rows), []
    for size in operation.param_sizes("sizes"):
        limit = tuple(a + b for a, b in zip(start, size, strict=True))
        part = None if axis is None else _between(operation, axis, start, limit, 1)
        results.append(AbstractValue((*operand.axes[:along], part, *operand.axes[along + 1 :]), operand.is_zero))
        start = limit
    return results, None


def dynamic_slice(operation: StepOperation) -> Outcome:
    """Slice at computed indices: a row axis must be kept complete."""
    operand = operation.values[0]
    for dimension, _ in operand.row_axes():
        if operation.in_sizes(0)[dimension] != operation.out_sizes()[dimension]:
            operation.refuse("takes some of the rows only")
    return [operand], None


def dynamic_update_slice(operation: StepOperation) -> Outcome:
    """Replace a slice at computed indices: a row axis must be replaced completely."""
    operand, update = operation.values[:2]
    axes: list[RowAxis | None] = []
    for dimension, pair in enumerate(zip(operand.axes, update.axes, strict=True)):
        if any(pair) and operation.in_sizes(0)[dimension] != operation.in_sizes(1)[dimension]:
            operation.refuse("replaces some of the rows only")
        axes.append(operation.aligned(pair))
    return [AbstractValue(tuple(axes))], None


RULES: dict[str, Rule] = {
    "broadcast_in_dim": broadcast,
    "iota": iota,
    "random_bits": random_numbers,
    "random_split": random_numbers,
    **dict.fromkeys(
        ("bitcast_convert_type", "random_seed", "random_wrap", "random_unwrap", "random_fold_in", "random_clone"),
        convert_key,
    ),
    "rng_bit_generator": random_bit_generator,
    "transpose": transpose,
    "squeeze": squeeze,
    "expand_dims": expand_dims,
    "rev": reverse,
    "reshape": reshape,
    "concatenate": concatenate,
    "stack": stack,
    "unstack": unstack,
    "tile": tile,
    "pad": pad,
    "slice": static_slice,
    "split": split,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
}
