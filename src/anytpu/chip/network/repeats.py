"""Repeated and picked positions: nearest up-sampling, RepeatVector, constant indices; and a permutation of positions.

Idea: the chip has no instruction for them, but each is a concatenation. Rows are in position-major order, so an axis is
repeated by a concatenation along the positions after it: `(2, 3)` positions next to themselves are `(2, 2, 3)`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.resampling import MAX_LINES
from anytpu.chip.network.trace import OperationTrace


def repeated_axes(operation: Operation, trace: OperationTrace) -> list[tuple[int, int]]:
    """Return the axes of an example along which a broadcast repeats values, last first, and how often.

    The list is empty if it repeats channels or numbers of a scalar function, or takes too many copies.
    """
    (value,) = operation.values
    axes, layout = operation.attributes["broadcast_dimensions"], trace.layouts[operation.result]
    wanted, before = trace.example(operation.result), trace.types[value].shape
    sizes = [1] * len(wanted)
    for axis, size in zip(axes, before, strict=True):
        if axis != layout.axis:
            sizes[layout.example_axis(axis)] = size
    repeated = [(axis, wanted[axis]) for axis in range(len(wanted)) if sizes[axis] != wanted[axis]][::-1]
    if layout.is_merged or list(axes) != sorted(axes) or not repeated or repeated[0][0] == len(wanted) - 1:
        return []
    lines = sum(count * math.prod(sizes[:axis]) for axis, count in repeated)
    return repeated if lines <= MAX_LINES else []


def picked(operation: Operation, trace: OperationTrace) -> tuple[int, list[int]] | None:
    """Return the axis of an example from which a gather takes positions at constant indices, and the indices."""
    source, indices = operation.operands
    if not isinstance(source, str):
        return None
    layout, shape = trace.layouts[source], trace.types[source].shape
    known = picked_along(operation.attributes, indices, shape, len(operation.shape))
    if known is None or layout.is_merged or known[0] == layout.axis or len(operation.shape) != len(shape):
        return None
    place, rank = layout.example_axis(known[0]), len(trace.example(source))
    lines = len(known[1]) * (1 if place == 0 else trace.shape(source)[0])
    return (place, known[1]) if rank in (2, 3) and place < rank - 1 and lines <= MAX_LINES else None


def picked_along(
    attributes: Mapping[str, Any], indices: Any, shape: Sequence[int], result_axes: int
) -> tuple[int, list[int]] | None:
    """Return the axis along which a gather takes whole slices of one index, and the constant indices, or None.

    Args:
        attributes: those of the gather.
        indices: its indices.
        shape: shape of its source.
        result_axes: number of axes of its result; those of the indices take the place of the axis.
    """
    numbers, sizes = attributes["dimension_numbers"], attributes["slice_sizes"]
    axes, places = numbers["start_index_map"], [n for n in range(result_axes) if n not in numbers["offset_dims"]]
    whole = [1 if n in axes else size for n, size in enumerate(shape)]
    plain = list(numbers["collapsed_slice_dims"]) == list(axes) and not numbers["operand_batching_dims"]
    if not isinstance(indices, np.ndarray) or len(axes) != 1 or not plain or list(sizes) != whole:
        return None
    known = np.clip(indices.reshape(-1).astype(np.int64), 0, shape[axes[0]] - 1)
    return (axes[0], known.tolist()) if places == list(range(axes[0], axes[0] + len(places))) else None


def repeat(trace: OperationTrace, graph: NetworkGraph, operation: Operation) -> None:
    """Add each value several times along axes."""
    shape = list(trace.example(operation.result))
    repeated = repeated_axes(operation, trace)
    for axis, _ in repeated:
        shape[axis] = 1
    source = graph.tensor(operation.values[0])
    for axis, count in repeated:
        outer, inner, channels = math.prod(shape[:axis]), math.prod(shape[axis + 1 : -1]), shape[-1]
        lines = graph.shaped(source, (outer, inner, channels), operation.layer)
        name = f"{operation.result}/along{axis}"
        source = graph.joined(name, operation.layer, [lines] * count, 1)
        shape[axis] = count
    graph.view(source, operation.result, trace.shape(operation.result), operation.layer)


def pick(trace: OperationTrace, graph: NetworkGraph, operation: Operation) -> None:
    """Add the positions at constant indices: slices of consecutive ones, one after another."""
    known = picked(operation, trace)
    assert known is not None
    place, indices = known
    axis = place + 3 - len(trace.example(operation.values[0]))
    source = graph.tensor(operation.values[0])
    parts = [_part(graph, operation, source, axis, start, stop) for start, stop in runs(indices)]
    graph.joined(operation.result, operation.layer, parts, axis)


def runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return the start and the end of each run of consecutive indices, one by one."""
    # Consecutive indices have one difference to their rank.
    for _, run in itertools.groupby(enumerate(indices), lambda entry: entry[1] - entry[0]):
        found = [index for _, index in run]
        yield found[0], found[-1] + 1


def permute(trace: OperationTrace, graph: NetworkGraph, operation: Operation) -> None:
    """Exchange height and width: the columns, each as a row, one after another."""
    source = graph.tensor(operation.values[0])
    height, width, channels = graph.shapes[source]
    parts = []
    for column in range(width):
        part = _part(graph, operation, source, 1, column, column + 1)
        parts.append(graph.shaped(part, (1, height, channels), operation.layer))
    graph.joined(operation.result, operation.layer, parts, 0)


def _part(graph: NetworkGraph, operation: Operation, source: str, axis: int, start: int, stop: int) -> str:
    name = f"{operation.result}/{start}to{stop}"
    if name in graph.nodes:
        return name
    return graph.part(name, operation.layer, source, axis, start, stop)
