"""Operations of two values of a quantized file: a function of one of them, or a node of two tensors.

Rule: a constant of one number makes a table, other constants a tensor of their own. The chip repeats a number for each
channel, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from anytpu.chip.given.integer_graph import IntegerGraph
from anytpu.chip.given.values import HeldTensor, Pending, Scaled, Value
from anytpu.chip.graph.nodes import Quantization
from anytpu.chip.graph.shapes import Geometry, canonical_shape
from anytpu.chip.network import elementwise
from anytpu.errors import QuantizationError

Refusal = Callable[[str], QuantizationError]
"""Returns the error for what the chip lacks, given the reason."""


def is_number(value: Value | None) -> bool:
    """Return whether a value is a constant of one number."""
    known = value.integers if isinstance(value, Scaled) else value
    return isinstance(known, np.ndarray) and known.size == 1


def combined(
    graph: IntegerGraph,
    kind: str,
    first: Value | None,
    second: Value | None,
    constant_of: Callable[[Value | None], tuple[np.ndarray, Quantization]],
    refused: Refusal,
) -> Pending:
    """Return the sum, difference or product of two values, or the quotient of one and a number.

    Args:
        graph: the graph that the node is added to.
        kind: "add", "subtract", "multiply" or "divide".
        first, second: the values; at least one is no constant.
        constant_of: returns signed integers of a constant, and their quantization.
        refused: as `Refusal`.
    """
    ufunc = elementwise.BINARY[kind]
    for value, other, turned in ((first, second, False), (second, first, True)):
        if isinstance(value, HeldTensor | Pending) and is_number(other):
            known = other.reals if isinstance(other, Scaled) else np.asarray(other)
            if known.ndim > len(value.dims) + 1:
                raise refused(f"combines {list(value.dims)} with constants of {list(known.shape)}")
            constant = known.astype(np.float32).reshape(())
            apply = (lambda x, c=constant: ufunc(c, x)) if turned else (lambda x, c=constant: ufunc(x, c))
            return graph.function(value, kind, apply)
    if kind != "subtract" and not isinstance(first, HeldTensor | Pending):
        first, second = second, first
    if not isinstance(first, HeldTensor | Pending):
        raise refused("subtracts a tensor from constants")
    held = in_order(graph, graph.held(first))
    if isinstance(second, HeldTensor | Pending):
        return _of_tensors(graph, kind, held, in_order(graph, graph.held(second)), refused)
    integers, own = constant_of(second)
    dims = integers.shape[1:] if integers.ndim == len(held.dims) + 1 and integers.shape[0] == 1 else integers.shape
    if _per_channel(dims, held):
        return graph.elementwise(kind, held, _constant(graph, held, integers.reshape(1, 1, -1), own))
    if len(dims) > len(held.dims) or np.broadcast_shapes(dims, held.dims) != held.dims:
        raise refused(f"combines {list(held.dims)} with constants of {list(integers.shape)}")
    whole = np.broadcast_to(integers.reshape(dims), held.dims)
    ordered = np.moveaxis(whole, 0, -1) if held.channels_first else whole
    return graph.elementwise(kind, held, _constant(graph, held, ordered.reshape(graph.shapes[held.tensor]), own))


def _of_tensors(graph: IntegerGraph, kind: str, held: HeldTensor, other: HeldTensor, refused: Refusal) -> Pending:
    if math.prod(other.dims) > math.prod(held.dims) and kind != "subtract":
        held, other = other, held
    if held.channels_first != other.channels_first and len(other.dims) == len(held.dims):
        held, other = graph.picture(held), graph.picture(other)
    for operand in (held, other):
        graph.of(operand)  # both need a scale
    shape, tensor = graph.shapes[held.tensor], other.tensor
    alike = other.dims == held.dims and other.channels_first == held.channels_first
    if alike and graph.shapes[tensor] == shape:
        return graph.elementwise(kind, held, tensor)
    ranks = len(other.dims) == len(held.dims)
    if ranks and graph.shapes[tensor] == (1, 1, shape[2]) and _per_channel(other.dims, held):
        return graph.elementwise(kind, held, tensor)
    raise refused(f"combines {list(held.dims)} with {list(other.dims)}, and the chip repeats a number per channel only")


def _per_channel(dims: tuple[int, ...], held: HeldTensor) -> bool:
    """Return whether a shape broadcasts as one number per channel."""
    padded = (*[1] * (len(held.dims) - len(dims)), *dims)
    channel = 0 if held.channels_first else len(held.dims) - 1
    return len(padded) == len(held.dims) and all(
        size == (held.dims[axis] if axis == channel else 1) for axis, size in enumerate(padded)
    )


def _constant(graph: IntegerGraph, beside: HeldTensor, integers: np.ndarray, own: Quantization) -> str:
    """Return a tensor of constant integers: the bias of a product with weights of 0."""
    height, width, channels = graph.shapes[beside.tensor]
    source, numbers = graph.of(beside), integers.reshape(-1).astype(np.int64)
    made = graph.product(
        beside,
        np.zeros((1, 1, channels, numbers.size), np.int64),
        np.array([own.scale / source.scale], np.float32),
        numbers - own.zero_point,
        Geometry(strides=(height, width)),
        (numbers.size,),
        False,
    ).make(own, None, None)
    return graph.shaped(made, canonical_shape(integers.shape))


def in_order(graph: IntegerGraph, held: HeldTensor) -> HeldTensor:
    """Return a picture with channels last, or another value in the file's order."""
    if held.channels_first and len(held.dims) in (2, 3) and graph.shapes[held.tensor][2] == held.dims[0]:
        return graph.picture(held)
    return graph.rows(held)


def aligned(graph: IntegerGraph, values: Sequence[HeldTensor | Pending]) -> list[HeldTensor]:
    """Return values in one order of numbers."""
    ordered = [in_order(graph, graph.held(value)) for value in values]
    return [graph.picture(value) for value in ordered] if any(value.channels_first for value in ordered) else ordered
