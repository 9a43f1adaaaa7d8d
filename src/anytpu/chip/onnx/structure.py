"""Host operations that move values or reduce along axes, as operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np

from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.operations import Operation
from anytpu.chip.onnx.batched_value import BatchedValue, UntranslatableError, open_shape
from anytpu.chip.onnx.graph import OnnxGraph, Operand

_Operands = Sequence[BatchedValue | np.ndarray]


def write_structure(graph: OnnxGraph, operation: Operation, operands: _Operands, layout: BatchLayout) -> str | None:
    """Write a data-movement operation, a product or a reduction.

    Args:
        graph: the graph to add it to.
        operation: the operation.
        operands: its operands; arrays are constants.
        layout: position of the batch in its result.

    Returns:
        The name of its value; None if the operation is of another kind.

    Raises:
        UntranslatableError: the operation has no ONNX equivalent.
    """
    return _WRITERS[operation.name](graph, operation, operands, layout) if operation.name in _WRITERS else None


def _int64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _placed(operand: BatchedValue | np.ndarray) -> BatchedValue:
    if not isinstance(operand, BatchedValue):
        raise UntranslatableError("on a constant")
    return operand


def _broadcast(graph: OnnxGraph, operation: Operation, operands: _Operands, layout: BatchLayout) -> str:
    source, axes = _placed(operands[0]), list(operation.attributes["broadcast_dimensions"])
    order = [int(n) for n in np.argsort(axes)]
    spread = [1] * len(operation.shape)
    for axis, size in zip(axes, source.shape, strict=True):
        spread[axis] = size
    ordered = graph.transpose(source.value, order)
    stretched = graph.add("Reshape", ordered, open_shape(spread, layout, -1))
    return graph.add("Expand", stretched, open_shape(operation.shape, layout, 1))


def _concatenate(graph: OnnxGraph, operation: Operation, operands: _Operands, _: BatchLayout) -> str:
    return graph.add(
        "Concat", *(_placed(operand).value for operand in operands), axis=operation.attributes["dimension"]
    )


def _dot(graph: OnnxGraph, operation: Operation, operands: _Operands, _: BatchLayout) -> str:
    """Write a dot_general as an Einsum."""
    numbers, letters = operation.attributes["dot_dimension_numbers"], iter(ascii_lowercase)
    names: list[dict[int, str]] = [{}, {}]
    for kind in ("batching", "contracting"):
        for pair in zip(numbers[f"lhs_{kind}"], numbers[f"rhs_{kind}"], strict=True):
            letter = next(letters)
            for side in (0, 1):
                names[side][pair[side]] = letter
    shared = [names[0][axis] for axis in numbers["lhs_batching"]]
    free: list[str] = []
    for side, operand in enumerate(operands):
        for axis in range(len(operand.shape)):
            if axis not in names[side]:
                names[side][axis] = next(letters)
                free.append(names[side][axis])
    sides = ["".join(names[side][axis] for axis in range(len(operand.shape))) for side, operand in enumerate(operands)]
    if any(not isinstance(operand, BatchedValue) for operand in operands) and shared:
        raise UntranslatableError("with a constant for each example")
    values = [operand.value if isinstance(operand, BatchedValue) else operand for operand in operands]
    return graph.add("Einsum", *values, equation=f"{','.join(sides)}->{''.join(shared + free)}")


def _gather(graph: OnnxGraph, operation: Operation, operands: _Operands, _: BatchLayout) -> str:
    """Write a gather of whole slices along one axis (an embedding); indices are clamped to the axis."""
    (source, indices), numbers = operands, operation.attributes["dimension_numbers"]
    axis, sizes = numbers["start_index_map"][0], list(operation.attributes["slice_sizes"])
    whole = [1 if n == axis else size for n, size in enumerate(source.shape)]
    if numbers["collapsed_slice_dims"] != [axis] or sizes != whole or numbers["operand_batching_dims"]:
        raise UntranslatableError("which takes more than slices along one axis")
    count = len(operation.shape) - len(numbers["offset_dims"])
    picked = [n for n in range(len(operation.shape)) if n not in numbers["offset_dims"]]
    where = _without_axis(graph, indices, numbers["index_vector_dim"])
    inside = graph.add("Min", graph.add("Max", where, np.int64(0)), np.int64(source.shape[axis] - 1))
    value = source.value if isinstance(source, BatchedValue) else source
    gathered = graph.add("Gather", value, inside, axis=axis)
    # ONNX puts the picked axes at the position of `axis`; transpose to StableHLO's order.
    places = [*numbers["offset_dims"][:axis], *picked, *numbers["offset_dims"][axis:]]
    assert len(picked) == count
    return graph.transpose(gathered, [int(n) for n in np.argsort(places)])


def _without_axis(graph: OnnxGraph, indices: BatchedValue | np.ndarray, axis: int) -> str:
    """Return indices as int64, without the index vector axis, which has size 1."""
    if isinstance(indices, np.ndarray):
        return graph.constant(
            indices.astype(np.int64).squeeze(axis) if axis < indices.ndim else indices.astype(np.int64)
        )
    value = graph.cast(indices.value, np.int64)
    return graph.add("Squeeze", value, _int64(axis)) if axis < len(indices.shape) else value


_REDUCERS: dict[str, tuple[str, str]] = {
    "add": ("ReduceSum", "Add"),
    "maximum": ("ReduceMax", "Max"),
    "minimum": ("ReduceMin", "Min"),
    "multiply": ("ReduceProd", "Mul"),
}


_BOOLEAN_REDUCERS = {"and": ("ReduceMin", "And"), "or": ("ReduceMax", "Or")}


def _reduce(graph: OnnxGraph, operation: Operation, operands: _Operands, _: BatchLayout) -> str:
    (source, start), is_boolean = operands, operation.dtype == bool
    known = _BOOLEAN_REDUCERS if is_boolean else _REDUCERS
    if operation.attributes.get("reducer") not in known:
        raise UntranslatableError("a reduction for which there is no operator here")
    reducer, joiner = known[operation.attributes["reducer"]]
    value = graph.cast(_placed(source).value, np.int32) if is_boolean else _placed(source).value
    reduced = graph.add(reducer, value, _int64(*operation.attributes["dimensions"]), keepdims=0)
    first: Operand = start.value if isinstance(start, BatchedValue) else start
    return graph.add(joiner, graph.cast(reduced, bool) if is_boolean else reduced, first)


def _slice(graph: OnnxGraph, operation: Operation, operands: _Operands, layout: BatchLayout) -> str:
    axes = [n for n in range(len(operation.shape)) if n != layout.axis]
    bounds = (_int64(*(operation.attributes[name][n] for n in axes)) for name in ("start_indices", "limit_indices"))
    steps = _int64(*(operation.attributes["strides"][n] for n in axes))
    return graph.add("Slice", _placed(operands[0]).value, *bounds, _int64(*axes), steps)


def _reverse(graph: OnnxGraph, operation: Operation, operands: _Operands, _: BatchLayout) -> str:
    axes = list(operation.attributes["dimensions"])
    ends = _int64(*[-1] * len(axes)), _int64(*[np.iinfo(np.int64).min] * len(axes))
    return graph.add("Slice", _placed(operands[0]).value, *ends, _int64(*axes), _int64(*[-1] * len(axes)))


def _pad(graph: OnnxGraph, operation: Operation, operands: _Operands, _: BatchLayout) -> str:
    source, filler = operands
    lows, highs = operation.attributes["edge_padding_low"], operation.attributes["edge_padding_high"]
    if isinstance(filler, BatchedValue) or any(operation.attributes["interior_padding"]) or min(*lows, *highs) < 0:
        raise UntranslatableError("with more than a constant around a value")
    return graph.add("Pad", _placed(source).value, np.array([*lows, *highs], np.int64), filler)


_WRITERS: dict[str, Callable[[OnnxGraph, Operation, Any, BatchLayout], str]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "dot_general": _dot,
    "gather": _gather,
    "pad": _pad,
    "reduce": _reduce,
    "reshape": lambda graph, operation, operands, layout: graph.add(
        "Reshape", _placed(operands[0]).value, open_shape(operation.shape, layout, -1)
    ),
    "reverse": _reverse,
    "slice": _slice,
    "transpose": lambda graph, operation, operands, _: graph.transpose(
        _placed(operands[0]).value, operation.attributes["permutation"]
    ),
}
