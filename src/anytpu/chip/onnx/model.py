"""`write`: write a quantized network as an ONNX model with the user's inputs and outputs.

Idea: the model quantizes its inputs, computes the network in standard ONNX operators, and dequantizes its outputs. It
runs without the chip: in onnxruntime, on a phone, in an FPGA tool.

Rule: every integer before the first float step of the host equals the chip's, at any level of onnxruntime's
optimizations; `graph/nodes.py` is the specification. Float steps (a softmax) agree only as far as two
implementations of exp do. Integers computed from them may differ by a step or two.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anytpu.chip.graph import nodes
from anytpu.chip.graph.nodes import Network, Node, Port
from anytpu.chip.onnx.convolution import write_convolution
from anytpu.chip.onnx.graph import OnnxGraph, load_onnx
from anytpu.chip.onnx.host import write_host_step
from anytpu.chip.onnx.integers import (
    write_concatenate,
    write_elementwise,
    write_reshape,
    write_slice,
    write_table,
)
from anytpu.chip.onnx.pool import write_pool
from anytpu.chip.onnx.writer import OnnxWriter
from anytpu.errors import ChipError, ChipFileError
from anytpu.files.replacing import write_bytes

OPSET = 21
"""Version of the ONNX operator set: the first with 16-bit integers in QuantizeLinear."""

IR_VERSION = 10
"""Version of the ONNX file format that belongs to `OPSET`."""

MAX_BYTES = 2**31 - 1
"""Maximum size of an ONNX file in bytes: it is a single Protocol Buffers message."""

_WRITERS: dict[type[Node], Callable[[OnnxWriter, Any], str]] = {
    nodes.Convolution: write_convolution,
    nodes.Pool: write_pool,
    nodes.Elementwise: write_elementwise,
    nodes.Table: write_table,
    nodes.Concatenate: write_concatenate,
    nodes.Slice: write_slice,
    nodes.Reshape: write_reshape,
    nodes.HostStep: write_host_step,
}

_DESCRIPTION = """\
A network in integers, as the first TPU computes it. Every integer before a float step is exact: the sums are
of 32 bits, scaled in float32, rounded half to even. Run it with any level of graph optimization. Its 8-bit tensors are
uint8, 128 above the chip's, so that no x86 CPU adds products in 16 bits."""


def write(network: Network, path: str | os.PathLike[str], *, integers: bool = False) -> Path:
    """Write a quantized network as an ONNX model.

    Inputs and outputs have the user's shapes and dtypes (in most cases float32), with any number of rows. It needs the
    package onnx.

    Args:
        network: the network.
        path: the file to write.
        integers: also make each chip tensor an output, named after it with ":integers", `(batch, height, width,
            channels)`, int8 or int16.

    Returns:
        The path.

    Raises:
        ChipError: onnx is not installed, or the weights exceed `MAX_BYTES`. Also: a host step has no ONNX operator;
            the message names the layer.
        ChipFileError: the file cannot be written.
    """
    onnx = load_onnx()
    _check_size(network)
    writer = OnnxWriter(network, OnnxGraph())
    # Reserve the user's names first, so that no internal value takes them.
    input_names = [writer.graph.name(port.tensor) for port in network.inputs]
    output_names = [writer.graph.name(port.tensor) for port in network.outputs]
    inputs = [_write_input(writer, port, name) for port, name in zip(network.inputs, input_names, strict=True)]
    for node in network.nodes:
        writer.values[node.output] = _WRITERS[type(node)](writer, node)
    outputs = [_write_output(writer, port, name) for port, name in zip(network.outputs, output_names, strict=True)]
    if integers:
        outputs += [_write_integers(writer, tensor) for tensor in network.quantizations if tensor in writer.values]
    graph = onnx.helper.make_graph(writer.graph.nodes, network.name, inputs, outputs, writer.graph.constants)
    model = onnx.helper.make_model(
        graph,
        ir_version=IR_VERSION,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        producer_name="anytpu",
        doc_string=_DESCRIPTION,
    )
    try:
        write_bytes(Path(path), model.SerializeToString())
    except OSError as error:
        raise ChipFileError(f"The file {str(path)!r} cannot be written: {error.strerror or error}.") from error
    return Path(path)


def _check_size(network: Network) -> None:
    weights = {id(node.weights): node.weights.size for node in network.nodes if isinstance(node, nodes.Convolution)}
    if (size := sum(weights.values())) > MAX_BYTES:
        raise ChipError(
            f"{network.name} has {size:,} bytes of weights, and an ONNX file holds {MAX_BYTES:,} bytes at most. Write "
            "the parts of the model on their own."
        )


def _write_input(writer: OnnxWriter, port: Port, name: str) -> Any:
    """Write an input of the model and its conversion to a tensor of the network; return its declaration."""
    shape, value, dtype = writer.shape(port.tensor), name, _outer_dtype(port)
    if port.tensor in writer.network.quantizations:
        value = writer.quantize(writer.graph.cast(value, np.float32, dtype), port.tensor)
    writer.values[port.tensor] = writer.channels_first(writer.graph.reshape(value, shape), shape)
    return _declared(name, dtype, port.shape)


def _write_output(writer: OnnxWriter, port: Port, name: str) -> Any:
    """Write the conversion of a tensor of the network to an output of the model; return its declaration."""
    graph, known = writer.graph, port.tensor in writer.network.quantizations
    last = writer.channels_last(writer.values[port.tensor], writer.shape(port.tensor))
    value = graph.reshape(last, port.shape)
    if known:
        value = writer.dequantize(value, port.tensor)
    graph.add("Identity", graph.cast(value, _outer_dtype(port), np.float32 if known else None), name=name)
    return _declared(name, _outer_dtype(port), port.shape)


def _outer_dtype(port: Port) -> str:
    """Return the dtype of an input or output of the model: the user's, but float32 for bfloat16, which NumPy lacks."""
    return "float32" if port.dtype == "bfloat16" else port.dtype


def _write_integers(writer: OnnxWriter, tensor: str) -> Any:
    """Write an output with the integers of a chip tensor; return its declaration."""
    quantization, shape = writer.quantization(tensor), writer.shape(tensor)
    value = writer.channels_last(writer.values[tensor], shape)
    if writer.offset(quantization):
        value = writer.graph.add("Sub", writer.graph.cast(value, np.int32), np.int32(writer.offset(quantization)))
    name = writer.graph.name(f"{tensor}:integers")
    writer.graph.add("Identity", writer.graph.cast(value, quantization.dtype), name=name)
    return _declared(name, quantization.dtype, shape)


def _declared(name: str, dtype: Any, shape: tuple[int, ...]) -> Any:
    helper = load_onnx().helper
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, ["batch", *shape])
