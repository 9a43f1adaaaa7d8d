"""Host steps: StableHLO operations as float32 operators of ONNX.

Idea: the operations of a step were traced with one batch size. `network/batching.py` finds the batch axis of each
value, and this axis is left open in the model: -1 in a Reshape, 1 in an Expand.

Rule: an operation without an equivalent here is an error that names the layer, never an approximation. Onnxruntime has
few operators for float16 and bfloat16. So a value of 16 bits is kept as float32, and rounded to its 16 bits after each
operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anytpu.chip.graph.nodes import HostStep
from anytpu.chip.network import batching
from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.operations import Argument, HostOperations, Operation
from anytpu.chip.network.parsing import TensorType
from anytpu.chip.onnx.batched_value import BatchedValue, UntranslatableError, open_shape
from anytpu.chip.onnx.elementwise import write_elements
from anytpu.chip.onnx.graph import OnnxGraph, held_dtype
from anytpu.chip.onnx.structure import write_structure
from anytpu.chip.onnx.writer import OnnxWriter
from anytpu.errors import ChipError


def write_host_step(writer: OnnxWriter, node: HostStep) -> str:
    """Write a host step; return the name of its value.

    Raises:
        ChipError: it has an operation without an ONNX equivalent.
    """
    graph, steps = writer.graph, node.steps
    values = {
        argument.name: _batched(graph, _real(writer, tensor), argument)
        for argument, tensor in zip(steps.arguments, node.inputs, strict=True)
    }
    types = {argument.name: TensorType(argument.shape, np.dtype(argument.dtype)) for argument in steps.arguments}
    types |= {operation.result: TensorType(operation.shape, operation.dtype) for operation in steps.operations}
    layouts = batching.follow(steps.operations, {argument.name: argument.layout for argument in steps.arguments}, types)
    for operation in steps.operations:
        values[operation.result] = _written(graph, node, operation, values, types, layouts)
    value = _rows_first(graph, values[steps.result.name], steps, layouts)
    value = writer.channels_first(graph.reshape(value, writer.shape(node.output)), writer.shape(node.output))
    target = writer.network.quantizations.get(node.output)
    if target is None:
        return value
    return writer.round(graph.add("Div", value, np.float32(target.scale)), target, target.low, target.high)


def _real(writer: OnnxWriter, tensor: str) -> str:
    """Return a tensor for the host, `(batch, height, width, channels)`; a chip tensor is dequantized.

    DequantizeLinear and QuantizeLinear are written as separate arithmetic operators. Otherwise onnxruntime would move
    them across data-movement operators, fuse them with a softmax, and round differently. Its version 1.31 also fails to
    load some of the fused graphs.
    """
    graph, value = writer.graph, writer.channels_last(writer.values[tensor], writer.shape(tensor))
    if tensor not in writer.network.quantizations:
        return value
    scale, zero_point = writer.parameters(tensor)
    centered = graph.add("Sub", graph.cast(value, np.float32), zero_point.astype(np.float32))
    return graph.add("Mul", centered, scale)


def _written(
    graph: OnnxGraph,
    node: HostStep,
    operation: Operation,
    values: dict[str, str],
    types: dict[str, TensorType],
    layouts: dict[str, BatchLayout],
) -> str:
    operands = [
        BatchedValue(values[operand], types[operand].shape, layouts[operand])
        if isinstance(operand, str)
        else operand.astype(held_dtype(operand.dtype), copy=False)
        for operand in operation.operands
    ]
    try:
        arguments = graph, operation, operands, layouts[operation.result]
        value = write_elements(*arguments) or write_structure(*arguments)
        if value is None:
            raise UntranslatableError("for which there is no operator here")
        return graph.rounded(value, operation.dtype)
    except UntranslatableError as reason:
        layer = operation.layer or node.layer or node.name
        raise ChipError(
            f"The layer {layer!r} cannot be written as ONNX: the host computes {operation.name!r} for it, {reason}. "
            "Compile the model without that layer, and compute it from the outputs."
        ) from None


def _batched(graph: OnnxGraph, value: str, argument: Argument) -> str:
    """Bring `(batch, height, width, channels)` into the shape and axis order of an argument of the operations."""
    shape, layout = argument.shape, argument.layout
    outside, inside = shape[: layout.axis], shape[layout.axis + 1 :]
    split = graph.reshape(value, (*outside, layout.before, layout.after, *inside))
    order = [*range(1, layout.axis + 2), 0, *range(layout.axis + 2, len(shape) + 2)]
    whole = _reshaped(graph, graph.transpose(split, order), open_shape(shape, layout, -1))
    return graph.rounded(whole, np.dtype(argument.dtype))


def _rows_first(graph: OnnxGraph, value: str, steps: HostOperations, layouts: dict[str, BatchLayout]) -> str:
    """Bring the batch axis of a result to the front: `(batch, product of the other axes)`."""
    result, layout = steps.result, layouts[steps.result.name]
    outside, inside = result.shape[: layout.axis], result.shape[layout.axis + 1 :]
    split = _reshaped(graph, value, (*outside, layout.before, -1, layout.after, *inside))
    order = [layout.axis + 1, *range(layout.axis + 1), *range(layout.axis + 2, len(result.shape) + 2)]
    whole = math.prod((*outside, layout.before, layout.after, *inside))
    return _reshaped(graph, graph.transpose(split, order), (-1, whole))


def _reshaped(graph: OnnxGraph, value: str, shape: Sequence[int] | np.ndarray) -> str:
    return graph.add("Reshape", value, np.array(shape, np.int64))
