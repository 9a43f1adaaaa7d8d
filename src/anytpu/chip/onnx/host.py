"""Host steps: StableHLO operations as float32 operators of ONNX.

Idea: the operations of a step were traced with one batch size. `network/batching.py` finds the batch axis of each
value, and this axis is left open in the model: -1 in a Reshape, 1 in an Expand.

Rule: an operation without an equivalent here is an error that names the layer, never an approximation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anytpu.chip.network import batching
from anytpu.chip.network.lay import Lay
from anytpu.chip.network.operations import Argument, Operation, Steps
from anytpu.chip.network.parsing import Type
from anytpu.chip.onnx.graph import Graph
from anytpu.chip.onnx.operators import write_operation
from anytpu.chip.onnx.placed import Placed, Untranslatable, open_shape
from anytpu.chip.onnx.writing import Writing
from anytpu.chip.quantized.nodes import QHostStep
from anytpu.errors import ChipError


def write_host_step(writing: Writing, node: QHostStep) -> str:
    """Write a host step; return the name of its value.

    Raises:
        ChipError: it has an operation without an ONNX equivalent.
    """
    graph, steps = writing.graph, node.step.steps
    values = {
        argument.name: _batched(graph, _real(writing, tensor), argument)
        for argument, tensor in zip(steps.arguments, node.inputs, strict=True)
    }
    types = {argument.name: Type(argument.shape, np.dtype(argument.dtype)) for argument in steps.arguments}
    types |= {operation.result: Type(operation.shape, operation.dtype) for operation in steps.operations}
    lays = batching.follow(steps.operations, {argument.name: argument.lay for argument in steps.arguments}, types)
    for operation in steps.operations:
        values[operation.result] = _written(graph, node, operation, values, types, lays)
    value = _rows_first(graph, values[steps.result.name], steps, lays)
    value = writing.channels_first(graph.reshape(value, writing.shape(node.output)), writing.shape(node.output))
    target = writing.network.quantizations.get(node.output)
    if target is None:
        return value
    return writing.round(graph.add("Div", value, np.float32(target.scale)), target, target.low, target.high)


def _real(writing: Writing, tensor: str) -> str:
    """Return a tensor for the host, `(batch, height, width, channels)`; a chip tensor is dequantized.

    DequantizeLinear and QuantizeLinear are written as separate arithmetic operators. Otherwise onnxruntime would move
    them across data-movement operators, fuse them with a softmax, and round differently. Its version 1.31 also fails to
    load some of the fused graphs.
    """
    graph, value = writing.graph, writing.channels_last(writing.values[tensor], writing.shape(tensor))
    if tensor not in writing.network.quantizations:
        return value
    scale, zero_point = writing.parameters(tensor)
    centered = graph.add("Sub", graph.cast(value, np.float32), zero_point.astype(np.float32))
    return graph.add("Mul", centered, scale)


def _written(
    graph: Graph,
    node: QHostStep,
    operation: Operation,
    values: dict[str, str],
    types: dict[str, Type],
    lays: dict[str, Lay],
) -> str:
    operands = [
        Placed(values[operand], types[operand].shape, lays[operand]) if isinstance(operand, str) else operand
        for operand in operation.operands
    ]
    try:
        return write_operation(graph, operation, operands, lays[operation.result])
    except Untranslatable as reason:
        layer = operation.layer or node.layer or node.name
        raise ChipError(
            f"The layer {layer!r} cannot be written as ONNX: the host computes {operation.name!r} for it, {reason}. "
            "Compile the model without that layer, and compute it from the outputs."
        ) from None


def _batched(graph: Graph, value: str, argument: Argument) -> str:
    """Bring `(batch, height, width, channels)` into the shape and axis order of an argument of the operations."""
    shape, lay = argument.shape, argument.lay
    outside, inside = shape[: lay.axis], shape[lay.axis + 1 :]
    split = graph.reshape(value, (*outside, lay.before, lay.after, *inside))
    order = [*range(1, lay.axis + 2), 0, *range(lay.axis + 2, len(shape) + 2)]
    return _reshaped(graph, graph.transpose(split, order), open_shape(shape, lay, -1))


def _rows_first(graph: Graph, value: str, steps: Steps, lays: dict[str, Lay]) -> str:
    """Bring the batch axis of a result to the front: `(batch, product of the other axes)`."""
    result, lay = steps.result, lays[steps.result.name]
    outside, inside = result.shape[: lay.axis], result.shape[lay.axis + 1 :]
    split = _reshaped(graph, value, (*outside, lay.before, -1, lay.after, *inside))
    order = [lay.axis + 1, *range(lay.axis + 1), *range(lay.axis + 2, len(result.shape) + 2)]
    whole = math.prod((*outside, lay.before, lay.after, *inside))
    cast = graph.cast(split, np.float32) if np.dtype(result.dtype).kind not in "iub" else split
    return _reshaped(graph, graph.transpose(cast, order), (-1, whole))


def _reshaped(graph: Graph, value: str, shape: Sequence[int] | np.ndarray) -> str:
    return graph.add("Reshape", value, np.array(shape, np.int64))
