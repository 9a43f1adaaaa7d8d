"""Rules for operations that move entries, or make new ones: reshape, transpose, concatenate, slice, random numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from anytpu.strategy.padded.axes import Fill, RowAxis, Segment, Value, axis_of
from anytpu.strategy.padded.operation import Operation, Outcome, Sizes


def broadcast(operation: Operation) -> Outcome:
    """Keep the axes that are mapped; the others are made anew, and all their entries are equal."""
    operand = operation.values[0]
    positions = operation.params["broadcast_dimensions"]
    axes: list[RowAxis | None] = []
    for position, sizes in enumerate(operation.out_sizes()):
        axis = operand.axes[positions.index(position)] if position in positions else None
        grows = position not in positions or operation.in_sizes(0)[positions.index(position)] != sizes
        axes.append(operation.created(sizes, is_free=True) if axis is None and grows else axis)
    return [Value(tuple(axes), operand.is_zero)], None


def iota(operation: Operation) -> Outcome:
    """Make axes anew; the entries of one of them count."""
    counting = operation.params["dimension"]
    sizes = operation.out_sizes()
    axes = [operation.created(size, is_free=position != counting) for position, size in enumerate(sizes)]
    return [Value(tuple(axes))], None


def random_numbers(operation: Operation) -> Outcome:
    """Keep the axes of the keys; the others are made anew, and hold independent random numbers."""
    kept = operation.values[0].axes
    results = []
    for index in range(len(operation.equation.outvars)):
        sizes = operation.out_sizes(index)
        made = [operation.created(size, is_free=True) for size in sizes[len(kept) :]]
        results.append(Value((*kept[: len(sizes)], *made)))
    return results, None


def random_bit_generator(operation: Operation) -> Outcome:
    """Make axes anew; they hold independent random numbers."""
    if operation.values[0].has_rows:
        operation.refuse("takes a key that hangs on the rows")
    results = []
    for index in range(len(operation.equation.outvars)):
        axes = [operation.created(size, is_free=True) for size in operation.out_sizes(index)]
        results.append(Value(tuple(axes)))
    return results, None


def wrapped_key(operation: Operation) -> Outcome:
    """Keep the leading axes of keys that gain or lose their last axis, or of each of several operands."""
    rank = len(operation.out_sizes())
    padded = [(*value.axes, *[None] * rank)[:rank] for value in operation.values if value.axes]
    lost = [axis for value in operation.values for axis in value.axes[rank:]]
    if any(lost):
        operation.refuse("may mix the rows with the pads")
    axes = [operation.joined([value[position] for value in padded]) for position in range(rank)]
    return [Value(tuple(axes))], None


def transpose(operation: Operation) -> Outcome:
    """Permute the axes."""
    operand = operation.values[0]
    return [Value(tuple(operand.axes[position] for position in operation.params["permutation"]), operand.is_zero)], None


def squeeze(operation: Operation) -> Outcome:
    """Drop axes of size 1."""
    operand, dropped = operation.values[0], operation.params["dimensions"]
    if any(operand.axes[position] for position in dropped):
        operation.refuse("takes one row")
    kept = tuple(axis for position, axis in enumerate(operand.axes) if position not in dropped)
    return [Value(kept, operand.is_zero)], None


def expand_dims(operation: Operation) -> Outcome:
    """Insert axes of size 1."""
    operand, rest = operation.values[0], iter(operation.values[0].axes)
    rank = len(operation.out_sizes())
    added = {position % rank for position in operation.params["dimensions"]}
    return [Value(tuple(None if p in added else next(rest) for p in range(rank)), operand.is_zero)], None


def reverse(operation: Operation) -> Outcome:
    """Keep the axes; rows cannot be turned round, as the pads would come first."""
    operand = operation.values[0]
    if any(operand.axes[position] is not None for position in operation.params["dimensions"]):
        operation.refuse("turns the rows round, which puts the pads first")
    return [operand], None


def reshape(operation: Operation) -> Outcome:
    """Keep, merge or split the row axes."""
    operand = operation.values[0]
    if not operand.has_rows:
        axes = [operation.created(size, is_free=False) for size in operation.out_sizes()]
        return [Value(tuple(axes), operand.is_zero)], None
    axes: list[RowAxis | None] = [None] * len(operation.out_sizes())
    for before, after in _groups(operation):
        marked = [position for position in before if operand.axes[position] is not None]
        if not marked:
            continue
        if len(marked) > 1:
            operation.refuse("merges two axes of rows")
        position, made = _regrouped(operation, before, after, marked[0])
        axes[position] = made
    return [Value(tuple(axes), operand.is_zero)], None


def _groups(operation: Operation) -> list[tuple[list[int], list[int]]]:
    """Return the axes of the operand and of the result that hold the same entries, in the smallest groups."""
    before, after = operation.in_sizes(0), operation.out_sizes()
    groups, (i, j) = [], (0, 0)
    while i < len(before) or j < len(after):
        left, right = [], []
        products: list[Sizes] = [(1,) * len(operation.rooms.all)] * 2
        while not (left or right) or products[0] != products[1]:
            if i < len(before) and (products[0][0] <= products[1][0] and not (left and j < len(after) and not right)):
                products[0] = _times(products[0], before[i])
                left.append(i)
                i += 1
            elif j < len(after):
                products[1] = _times(products[1], after[j])
                right.append(j)
                j += 1
            elif i < len(before):
                products[0] = _times(products[0], before[i])
                left.append(i)
                i += 1
            else:
                break
        groups.append((left, right))
    return groups


def _times(one: Sizes, two: Sizes) -> Sizes:
    return tuple(a * b for a, b in zip(one, two, strict=True))


def _regrouped(operation: Operation, before: list[int], after: list[int], marked: int) -> tuple[int, RowAxis]:
    """Return where the row axis of a group is in the result, and what it is there."""
    axis = operation.values[0].axes[marked]
    assert axis is not None
    sizes = {position: operation.in_sizes(0)[position] for position in before}
    outer = math.prod(sizes[position][0] for position in before if position < marked)
    inner = math.prod(sizes[position][0] for position in before if position > marked)
    merged = axis if outer == inner == 1 else axis.scaled(inner, outer)
    total = [operation.out_sizes()[position] for position in after]
    # The axis of the result that is over rows: the only one whose size hangs on them.
    growing = [position for position, size in zip(after, total, strict=True) if len(set(size)) > 1]
    if operation.rooms.second is None:
        growing = [position for position in after if operation.out_sizes()[position] == sizes[marked]][:1]
    if len(growing) != 1:
        operation.refuse("takes the rows apart")
    (found,) = growing
    outer = math.prod(operation.out_sizes()[position][0] for position in after if position < found)
    inner = math.prod(operation.out_sizes()[position][0] for position in after if position > found)
    return found, _split(operation, merged, outer, inner)


def _split(operation: Operation, axis: RowAxis, outer: int, inner: int) -> RowAxis:
    """Return what is left of a row axis that is split into `outer`, itself and `inner`."""
    if outer == inner == 1:
        return axis
    count = len(axis.segments) // outer
    segments = axis.segments[:count]
    divides = all(segment.each % inner == 0 and segment.plain % inner == 0 for segment in segments)
    if segments * outer != axis.segments or not divides:
        operation.refuse("takes the rows apart")
    split = axis_of([Segment(segment.each // inner, segment.plain // inner) for segment in segments], axis.fill)
    return dataclasses.replace(split, is_free=axis.is_free)


def concatenate(operation: Operation) -> Outcome:
    """Join axes end to end, and the others entry by entry."""
    along = operation.params["dimension"]
    axes = []
    for position in range(len(operation.out_sizes())):
        each = [value.axes[position] for value in operation.values]
        if position != along:
            axes.append(operation.joined(each))
        elif not any(each):
            axes.append(None)
        else:
            segments: list[Segment] = []
            for index, axis in enumerate(each):
                size = operation.in_sizes(index)[position][0]
                segments.extend(axis.segments if axis is not None else [Segment(0, size)])
            axes.append(axis_of(segments, min((axis.fill for axis in each if axis), default=Fill.ANY)))
    return [Value(tuple(axes))], None


def pad(operation: Operation) -> Outcome:
    """Put entries before and behind, which belong to no row, or are those of rows where their number is."""
    operand = operation.values[0]
    configs = [operation.params["padding_config"]]
    if operation.other is not None:
        configs.append(operation.other_param("padding_config"))
    axes = []
    for position, axis in enumerate(operand.axes):
        lows, highs, gaps = zip(*(config[position] for config in configs), strict=True)
        if axis is None and len(set(lows)) == len(set(highs)) == 1:
            axes.append(None)
            continue
        if (any(lows) or any(highs)) and (any(gaps) or min(*lows, *highs) < 0):
            operation.refuse("puts pads between the rows or takes rows away")
        middle = (Segment(0, operation.in_sizes(0)[position][0]),) if axis is None else axis.segments
        ends = [operation.created(tuple(map(int, sizes)), is_free=True) for sizes in (lows, highs)]
        before, after = (
            end.segments if end is not None else (Segment(0, int(sizes[0])),)
            for end, sizes in zip(ends, (lows, highs), strict=True)
        )
        fill = Fill.ANY if axis is None else axis.fill
        axes.append(axis_of((*before, *middle, *after), fill if operation.values[1].is_zero else Fill.ANY))
    return [Value(tuple(axes))], None


def stack(operation: Operation) -> Outcome:
    """Join values along an axis of their own."""
    along, rank = operation.params["axis"], len(operation.out_sizes())
    axes = [operation.joined([value.axes[position] for value in operation.values]) for position in range(rank - 1)]
    return [Value((*axes[:along], None, *axes[along:]))], None


def unstack(operation: Operation) -> Outcome:
    """Take a value apart along an axis."""
    operand, along = operation.values[0], operation.params["axis"]
    if operand.axes[along] is not None:
        operation.refuse("takes the rows apart")
    value = Value((*operand.axes[:along], *operand.axes[along + 1 :]), operand.is_zero)
    return [value] * len(operation.equation.outvars), None


def tile(operation: Operation) -> Outcome:
    """Repeat a value along its axes."""
    operand, axes = operation.values[0], []
    counts = operation.param_sizes("reps")
    for position, (axis, count) in enumerate(zip(operand.axes, counts, strict=True)):
        if axis is None:
            axes.append(
                operation.created(operation.out_sizes()[position], is_free=operation.in_sizes(0)[position][0] == 1)
            )
        elif len(set(count)) > 1:
            operation.refuse("repeats the rows as often as there are rows")
        else:
            axes.append(axis if count[0] == 1 else axis.scaled(1, count[0]))
    return [Value(tuple(axes), operand.is_zero)], None


def cut(operation: Operation) -> Outcome:
    """Slice: a row axis is kept whole, or cut between its segments."""
    operand = operation.values[0]
    starts, limits = operation.param_sizes("start_indices"), operation.param_sizes("limit_indices")
    strides = operation.params["strides"] or (1,) * len(operand.axes)
    axes = [
        axis if axis is None else _between(operation, axis, start, limit, stride)
        for axis, start, limit, stride in zip(operand.axes, starts, limits, strides, strict=True)
    ]
    return [Value(tuple(axes), operand.is_zero)], None


def _between(operation: Operation, axis: RowAxis, start: Sizes, limit: Sizes, stride: int) -> RowAxis | None:
    bounds = axis.bounds(*operation.rooms.all)
    if stride != 1 or start not in bounds or limit not in bounds:
        operation.refuse("takes some of the rows only")
    segments = axis.segments[bounds.index(start) : bounds.index(limit)]
    if not any(segment.each for segment in segments):
        return None
    return dataclasses.replace(axis_of(segments, axis.fill), is_free=axis.is_free)


def split(operation: Operation) -> Outcome:
    """Cut a value into several along an axis."""
    operand, along = operation.values[0], operation.params["axis"]
    axis, sizes = operand.axes[along], operation.param_sizes("sizes")
    results, start = [], (0,) * len(operation.rooms.all)
    for size in sizes:
        limit = tuple(a + b for a, b in zip(start, size, strict=True))
        part = None if axis is None else _between(operation, axis, start, limit, 1)
        results.append(Value((*operand.axes[:along], part, *operand.axes[along + 1 :]), operand.is_zero))
        start = limit
    return results, None


def cut_at(operation: Operation) -> Outcome:
    """Slice at positions that are computed: a row axis must be kept whole."""
    operand = operation.values[0]
    for position, _ in operand.rows():
        if operation.in_sizes(0)[position] != operation.out_sizes()[position]:
            operation.refuse("takes some of the rows only")
    return [operand], None


def update_at(operation: Operation) -> Outcome:
    """Replace a slice: a row axis must be replaced whole."""
    operand, update = operation.values[:2]
    axes: list[RowAxis | None] = []
    for position, pair in enumerate(zip(operand.axes, update.axes, strict=True)):
        if any(pair) and operation.in_sizes(0)[position] != operation.in_sizes(1)[position]:
            operation.refuse("replaces some of the rows only")
        axes.append(operation.joined(pair))
    return [Value(tuple(axes))], None


RULES: dict[str, Callable[[Operation], Outcome]] = {
    "broadcast_in_dim": broadcast,
    "iota": iota,
    "random_bits": random_numbers,
    "random_split": random_numbers,
    "bitcast_convert_type": wrapped_key,
    "random_seed": wrapped_key,
    "random_wrap": wrapped_key,
    "random_unwrap": wrapped_key,
    "random_fold_in": wrapped_key,
    "random_clone": wrapped_key,
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
    "slice": cut,
    "split": split,
    "dynamic_slice": cut_at,
    "dynamic_update_slice": update_at,
}
