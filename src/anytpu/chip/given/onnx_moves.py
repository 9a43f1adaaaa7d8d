"""Operators of a quantized ONNX file that only move numbers."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from anytpu.chip.given.combining import aligned, in_order
from anytpu.chip.given.onnx_node import BATCH, FLOAT, OnnxNode, Operands, activation, number, plain
from anytpu.chip.given.values import HeldTensor, Scaled, Value


def same(node: OnnxNode, operands: Operands) -> Value:
    """Return the operand."""
    return activation(node, operands[0])


def cast(node: OnnxNode, operands: Operands) -> Value:
    """Return an activation in floats."""
    value = activation(node, operands[0])
    if node.attributes.get("to") not in (1, 10, 11, 16):
        raise node.refused("makes other numbers than floats, and the chip's activations are real numbers", FLOAT)
    if not isinstance(value, HeldTensor) or not value.stored:
        return value
    return dataclasses.replace(node.graph.reread(value, plain(np.dtype(value.stored))), stored="")


def dropout(node: OnnxNode, operands: Operands) -> Value:
    """Return the operand, if the node is not for training."""
    training = operands[2] if len(operands) > 2 else None
    if training is not None and not (isinstance(training, np.ndarray) and not training.any()):
        raise node.refused("drops numbers at random", FLOAT)
    return activation(node, operands[0])


def reshape(node: OnnxNode, operands: Operands) -> Value:
    """Return a value in another shape: Reshape, Flatten, Squeeze, Unsqueeze."""
    held = node.graph.held(activation(node, operands[0]))
    size = math.prod(held.dims)
    if node.kind == "Flatten":
        axis = node.attributes.get("axis", 1)
        dims = [size] if axis == 1 else None
    elif node.kind == "Reshape":
        wanted = node.numbers("shape", operands, 1) or []
        dims = [held.dims[n - 1] if n and number == 0 else number for n, number in enumerate(wanted)][1:]
        if not wanted or wanted[0] not in (0, -1, node.batch or -1, BATCH):
            dims = None
    else:
        dims = _with_axes(node, held, node.numbers("axes", operands, 1))
    if dims is not None and dims.count(-1) == 1:
        dims[dims.index(-1)] = size // max(-math.prod(dims), 1)
    if dims is None or math.prod(dims) != size or min(dims, default=1) < 1:
        raise node.refused(
            f"makes another batch of {list(held.dims)}, and the chip computes each example by itself", FLOAT
        )
    return dataclasses.replace(held, dims=tuple(dims))


def _with_axes(node: OnnxNode, held: HeldTensor, axes: list[int] | None) -> list[int] | None:
    """Return the dims after Squeeze or Unsqueeze; None if the batch is concerned."""
    rank = len(held.dims) + 1 + (len(axes or []) if node.kind == "Unsqueeze" else 0)
    places = sorted(axis % rank for axis in axes or [n + 1 for n, size in enumerate(held.dims) if size == 1])
    if 0 in places or (not axes and node.batch == 1):
        return None
    dims = [0, *held.dims]
    if node.kind == "Unsqueeze":
        for place in places:
            dims.insert(place, 1)
    else:
        if any(dims[place] != 1 for place in places):
            return None
        dims = [size for place, size in enumerate(dims) if place not in places]
    return dims[1:]


def transpose(node: OnnxNode, operands: Operands) -> Value:
    """Return a transposed value; the host moves numbers between channels and positions."""
    value = operands[0]
    if isinstance(value, Scaled):
        order = node.attributes.get("perm", list(range(value.integers.ndim))[::-1])
        return value.reshaped(value.integers.transpose(order), list(order).index(value.axis))
    held = node.graph.held(activation(node, value))
    rank = len(held.dims) + 1
    order = list(node.attributes.get("perm", range(rank)[::-1]))
    if order[:1] != [0] or sorted(order) != list(range(rank)):
        raise node.refused("moves the batch, and the chip computes each example by itself", FLOAT)
    return node.graph.transposed(held, order)


def _parts(node: OnnxNode, operands: Operands) -> tuple[list[HeldTensor], int]:
    """Return activations in one order of numbers, and the attribute "axis"."""
    values = aligned(node.graph, [activation(node, value) for value in operands])
    return values, node.axis(len(values[0].dims) + 1, 1)


def concat(node: OnnxNode, operands: Operands) -> Value:
    """Write a concatenation."""
    values, axis = _parts(node, operands)
    return node.graph.concatenation(values, axis)


def split(node: OnnxNode, operands: Operands) -> list[Value]:
    """Write the parts of a value."""
    (value,), axis = _parts(node, operands[:1])
    size = value.dims[axis]
    if node.attributes.get("num_outputs", node.outputs) != node.outputs:
        raise ValueError(f"{node.layer!r:.100} has {node.outputs} results")
    share = -(-size // max(node.outputs, 1))
    sizes = node.numbers("split", operands, 1) or [min(share, size - start) for start in range(0, size, share)]
    ends = np.cumsum([0, *sizes])
    return [node.graph.part(value, axis, int(start), int(end)) for start, end in itertools.pairwise(ends)]


def slice_of(node: OnnxNode, operands: Operands) -> Value:
    """Write a part of a value."""
    value = in_order(node.graph, node.graph.held(activation(node, operands[0])))
    starts, ends = node.numbers("starts", operands, 1) or [], node.numbers("ends", operands, 2) or []
    axes = node.numbers("axes", operands, 3) or list(range(len(starts)))
    if set(node.numbers("steps", operands, 4) or [1]) != {1}:
        raise node.refused("takes every so many numbers", FLOAT)
    for start, end, axis in zip(starts, ends, axes, strict=True):
        place = node.example_axis(axis, len(value.dims) + 1)
        first, last, _ = slice(start, end).indices(value.dims[place])
        value = node.graph.part(value, place, first, last)
    return value


def pad(node: OnnxNode, operands: Operands) -> Value:
    """Write zeros around a picture."""
    pads, value = node.numbers("pads", operands, 1) or [], activation(node, operands[0])
    fill = number(node, operands, 2, "value") or 0.0
    source, mode = node.graph.picture(value), node.attributes.get("mode", b"constant")
    rank = len(source.dims) + 1
    if mode != b"constant" or fill != 0 or any(pads[n] for n in (0, 1, rank, rank + 1)) or len(operands) > 3:
        raise node.refused("pads with something else than zeros around a picture", FLOAT)
    pairs = list(zip(pads[2:rank], pads[rank + 2 :], strict=True))
    padding = ((0, 0), pairs[0]) if rank == 3 else (pairs[0], pairs[1])
    return node.graph.padded(source, padding)
