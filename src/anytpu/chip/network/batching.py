"""Following the batch through a program: the batch axis of each value, and the check that examples never mix.

Idea: the chip works on examples, not on batches, so each value is split into examples. A program may move the batch to
another axis (recurrent layers put time first) or merge it with other axes. But the result of one example may not depend
on another example.

Rule: an operation that mixes examples is an error that names the layer; there is no guess. An operation without a rule
of its own is tried on random values: it passes if permuting the examples permutes its results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip.network import elementwise
from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.parsing import TensorType
from anytpu.errors import QuantizationError
from anytpu.program.axes import Factors, holds, spans_of


class MixedExamplesError(Exception):
    """An operation's result for one example depends on others; the text says how."""


Types = Mapping[str, TensorType]

_DIFFERS = "it uses a constant that differs from example to example"


def follow(operations: Sequence[Operation], inputs: Mapping[str, BatchLayout], types: Types) -> dict[str, BatchLayout]:
    """Return the layout of the examples in each value.

    Args:
        operations: the operations, in order.
        inputs: layout of the examples in each input.
        types: type of each value.

    Raises:
        QuantizationError: an operation mixes examples.
    """
    layouts = dict(inputs)
    for operation in operations:
        try:
            layouts[operation.result] = _layout(operation, layouts, types)
        except MixedExamplesError as mixed:
            raise QuantizationError(
                f"{_place(operation)} mixes the examples of a batch: {mixed}. The chip computes each example by "
                "itself: give each its own result, with axis 0 of inputs and outputs the batch."
            ) from None
    return layouts


def _place(operation: Operation) -> str:
    return f"The layer {operation.layer!r}" if operation.layer else f"The operation {operation.name!r}"


def _layout(operation: Operation, layouts: Mapping[str, BatchLayout], types: Types) -> BatchLayout:
    if operation.name in elementwise.NAMES:
        return _of_elements(operation, layouts, types)
    rule = _RULES.get(operation.name, _tried)
    return rule(operation, layouts, types)


def _of_elements(operation: Operation, layouts: Mapping[str, BatchLayout], types: Types) -> BatchLayout:
    distinct = {layouts[value] for value in operation.values if types[value].shape}
    if len(distinct) != 1:
        raise MixedExamplesError("it joins values in which the batch lies along different axes")
    layout = distinct.pop()
    _check_constants(operation, layout)
    return layout


def _check_constants(operation: Operation, layout: BatchLayout) -> None:
    """Raise if a constant with the axes of the result differs from example to example."""
    rank = len(operation.shape)
    for operand in operation.operands:
        if not isinstance(operand, np.ndarray) or operand.ndim != rank:
            continue
        # One row, as of a constant that is broadcast, is for all examples.
        if operand.shape[layout.axis] != 1 and not layout.is_the_same_for_all(operand):
            raise MixedExamplesError(_DIFFERS)


def _factors(name: str, params: Mapping[str, Any], operation: Operation, types: Types) -> Factors:
    """Return the factors of an operation whose axes move as those of a JAX primitive."""
    shapes = [types[each].shape if isinstance(each, str) else each.shape for each in operation.operands]
    return Factors(name, params, shapes, [operation.shape])


def _moved(primitive: str, why: str) -> Callable[..., BatchLayout]:
    """Return the rule of an operation on one value that may move the batch axis, and must not drop it."""

    def rule(operation: Operation, layouts: Mapping[str, BatchLayout], types: Types) -> BatchLayout:
        layout = layouts[operation.values[0]]
        axis = _factors(primitive, operation.attributes, operation, types).moved(0, layout.axis)
        if axis is None:
            raise MixedExamplesError(why)
        return dataclasses.replace(layout, axis=axis)

    return rule


def _reshape(operation: Operation, layouts: Mapping[str, BatchLayout], types: Types) -> BatchLayout:
    layout = layouts[operation.values[0]]
    _, inner = spans_of(types[operation.values[0]].shape)[layout.axis]
    rows = (layout.rows * layout.after * inner, layout.after * inner)
    fits = [
        BatchLayout(axis, layout.rows, span[0] // rows[0], rows[1] // span[1])
        for axis, span in enumerate(spans_of(operation.shape))
        if holds(span, rows)
    ]
    if not fits:
        raise MixedExamplesError("it reshapes an array so that rows of several examples come together")
    return min(fits, key=lambda candidate: (candidate.before * candidate.after, candidate.axis))


def _unmoved(why: str, touched: Callable[[Operation, int, Types], bool]) -> Callable[..., BatchLayout]:
    """Return the rule of an operation that keeps all axes in place, and must not change the batch axis."""

    def rule(operation: Operation, layouts: Mapping[str, BatchLayout], types: Types) -> BatchLayout:
        distinct = {layouts[value] for value in operation.values}
        layout = distinct.pop()
        if distinct or touched(operation, layout.axis, types):
            raise MixedExamplesError(why)
        _check_constants(operation, layout)
        return layout

    return rule


def _cuts(operation: Operation, axis: int, types: Types) -> bool:
    return operation.shape[axis] != types[operation.values[0]].shape[axis] or operation.attributes["strides"][axis] != 1


def _windows(operation: Operation, axis: int, types: Types) -> bool:
    geometry = [operation.attributes[name][axis] for name in ("window_dimensions", "window_strides", "base_dilations")]
    return geometry != [1, 1, 1] or operation.attributes["padding"][axis] != [0, 0]


def _dot(operation: Operation, layouts: Mapping[str, BatchLayout], types: Types) -> BatchLayout:
    layout, numbers = layouts[operation.values[0]], operation.attributes["dot_dimension_numbers"]
    axes = [[numbers[f"{side}_{kind}"] for side in ("lhs", "rhs")] for kind in ("contracting", "batching")]
    factors = _factors("dot_general", {"dimension_numbers": axes}, operation, types)
    pairs = list(zip(operation.operands, factors.operands, strict=True))
    rows = {axes[layouts[operand].axis] for operand, axes in pairs if isinstance(operand, str)}
    if rows & factors.summed:
        raise MixedExamplesError("it sums products over the batch")
    if len(rows) > 1:
        raise MixedExamplesError("it multiplies each example with all others")
    (row,) = rows
    # Each example is multiplied with its own values, or with a constant that is the same for all.
    for operand, axes in pairs:
        own = dataclasses.replace(layout, axis=axes.index(row)) if row in axes else None
        if own and isinstance(operand, str) and layouts[operand] != own:
            raise MixedExamplesError("it multiplies an example with others")
        if own and isinstance(operand, np.ndarray) and not own.is_the_same_for_all(operand):
            raise MixedExamplesError(_DIFFERS)
    return dataclasses.replace(layout, axis=factors.results[0].index(row))


def _convolution(operation: Operation, layouts: Mapping[str, BatchLayout], types: Types) -> BatchLayout:
    picture, kernel = operation.operands
    numbers = operation.attributes["dimension_numbers"]
    if not isinstance(picture, str) or isinstance(kernel, str):
        raise MixedExamplesError("its kernel depends on the examples")
    if layouts[picture].axis != numbers["input"][0] or operation.attributes.get("batch_group_count", 1) != 1:
        raise MixedExamplesError("it convolves over the batch")
    return dataclasses.replace(layouts[picture], axis=numbers["output"][0])


def _gather(operation: Operation, layouts: Mapping[str, BatchLayout], types: Types) -> BatchLayout:
    source, indices = operation.operands
    numbers, sizes = operation.attributes["dimension_numbers"], operation.attributes["slice_sizes"]
    places = [axis for axis in range(len(operation.shape)) if axis not in numbers["offset_dims"]]
    if isinstance(indices, str):
        axis = layouts[indices].axis
        if isinstance(source, str) and layouts[source].axis not in numbers["operand_batching_dims"]:
            raise MixedExamplesError("it picks from all examples by numbers of one")
        if axis == numbers["index_vector_dim"]:
            raise MixedExamplesError("it takes the examples of a batch for the axes of an index")
        if axis in numbers["start_indices_batching_dims"]:
            place = numbers["operand_batching_dims"][numbers["start_indices_batching_dims"].index(axis)]
            layout = dataclasses.replace(layouts[indices], axis=place)
            if isinstance(source, np.ndarray) and not layout.is_the_same_for_all(source):
                raise MixedExamplesError(_DIFFERS)
            if isinstance(source, str) and layouts[source] != layout:
                raise MixedExamplesError("it picks from one example by numbers of another")
        elif isinstance(source, str):
            raise MixedExamplesError("it picks from one example by numbers of another")
        return dataclasses.replace(layouts[indices], axis=places[axis - (axis > numbers["index_vector_dim"])])
    assert isinstance(source, str)
    layout = layouts[source]
    gone = (*numbers["collapsed_slice_dims"], *numbers["operand_batching_dims"])
    if layout.axis in gone or sizes[layout.axis] != types[source].shape[layout.axis]:
        raise MixedExamplesError("it picks some examples of the batch")
    return dataclasses.replace(
        layout, axis=numbers["offset_dims"][layout.axis - sum(axis < layout.axis for axis in gone)]
    )


def _tried(operation: Operation, layouts: Mapping[str, BatchLayout], types: Types) -> BatchLayout:
    """Accept an operation that keeps the batch axis, if permuting random examples permutes its results."""
    layout = layouts[operation.values[0]]
    if len({layouts[value] for value in operation.values}) > 1 or _size_at(operation.shape, layout.axis) != _size_at(
        types[operation.values[0]].shape, layout.axis
    ):
        raise MixedExamplesError(f"what {operation.name!r} does with them cannot be followed")
    random, order = np.random.default_rng(0), np.roll(np.arange(layout.rows), 1)
    samples = {
        value: random.integers(0, 9, types[value].shape).astype(types[value].dtype) for value in operation.values
    }
    moved = {value: layout.batched(layout.rows_first(array)[order], array.shape) for value, array in samples.items()}
    if not np.array_equal(
        layout.rows_first(operation.compute(samples))[order], layout.rows_first(operation.compute(moved))
    ):
        raise MixedExamplesError(f"so does its operation {operation.name!r}")
    return layout


def _size_at(shape: Sequence[int], axis: int) -> int:
    return shape[axis] if axis < len(shape) else -1


_RULES: dict[str, Callable[[Operation, Mapping[str, BatchLayout], Types], BatchLayout]] = {
    "broadcast_in_dim": _moved("broadcast_in_dim", "it repeats a batch of one example"),
    "concatenate": _unmoved(
        "it puts examples one after another", lambda operation, axis, _: operation.attributes["dimension"] == axis
    ),
    "convolution": _convolution,
    "dot_general": _dot,
    "gather": _gather,
    "pad": _unmoved(
        "it adds examples to the batch",
        lambda operation, axis, types: operation.shape[axis] != types[operation.values[0]].shape[axis],
    ),
    "reduce": _moved("reduce_max", "it reduces over the batch (a sum, a mean or a maximum of all examples)"),
    "reduce_window": _unmoved("it pools over the batch", _windows),
    "reshape": _reshape,
    "reverse": _unmoved("it reverses the batch", lambda operation, axis, _: axis in operation.attributes["dimensions"]),
    "slice": _unmoved("it takes some examples of the batch", _cuts),
    "transpose": _moved("transpose", "it drops the batch"),
}
