"""`read_onnx`: a quantized ONNX file (QDQ or QOperator) as a network in integers.

Idea: the file has every scale. Each of its operators becomes a node of the graph, whose arithmetic is ONNX's. Nothing
is calibrated. A uint8 tensor is the int8 tensor 128 below it.

Rule: a file may be altered or damaged. The reader checks what it declares before it uses it. The finished network
is checked by the rules for networks of files.

Source: https://onnx.ai/onnx/operators, and onnxruntime's contrib operators (QLinearAdd, QGemm, ...).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anytpu.chip.given.integer_graph import IntegerGraph
from anytpu.chip.given.onnx_node import (
    BATCH,
    FLOAT,
    Attributes,
    OnnxNode,
    activation,
    dequantized,
    plain,
    quantized,
    scaled,
)
from anytpu.chip.given.onnx_operators import OPERATORS, SCALED_OPERATORS
from anytpu.chip.given.values import MAX_NUMBERS, HeldTensor, Pending, Value
from anytpu.chip.graph.nodes import Network, Port
from anytpu.chip.graph.shapes import canonical_shape
from anytpu.chip.isa.design import Design
from anytpu.chip.network.operations import NONSENSE
from anytpu.chip.onnx.graph import load_onnx
from anytpu.chip.quantized.checking import check_network
from anytpu.errors import AnyTPUError, ChipFileError, QuantizationError

_QUANTIZED = ("QuantizeLinear", "DequantizeLinear")
_DYNAMIC = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "ConvInteger")
_INPUTS = ("float32", "float16", "int8", "uint8", "int16", "uint16", "int32", "int64")


def read_onnx(path: str | Path, design: Design) -> Network:
    """Return the network in integers of an ONNX file.

    Raises:
        ChipFileError: the file cannot be read, or makes no sense.
        QuantizationError: the file is not quantized, or quantized in a way that the chip lacks; the message names the
            layer.
    """
    onnx = load_onnx()
    try:
        model = onnx.load(str(path))
    except OSError as error:
        raise ChipFileError(f"The file {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # protobuf and onnx raise classes of their own
        raise ChipFileError(f"{str(path)!r} is no ONNX file ({_first_line(error)}): export the model again.") from error
    try:
        network = _OnnxReader(model, Path(path).stem, onnx).read()
        check_network(network, design)
    except AnyTPUError as error:
        raise type(error)(f"{Path(path).name}: {error}") from error
    except NONSENSE as error:
        raise ChipFileError(
            f"{str(path)!r} makes no sense ({type(error).__name__}: {_first_line(error)}): export the model again."
        ) from error
    return network


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


class _OnnxReader:
    """The state of the translation: the graph in integers, and the file's values by their names."""

    def __init__(self, model: Any, stem: str, onnx: Any):
        self._onnx, self._file = onnx, model.graph
        self._name = model.graph.name or stem
        self._opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)
        self._graph, self._batch = IntegerGraph(), 0
        self._values: dict[str, Value | None] = {"": None}

    def read(self) -> Network:
        kinds = [node.op_type for node in self._file.node]
        self._check_kinds(kinds)
        for tensor in self._file.initializer:
            self._values[tensor.name] = self._onnx.numpy_helper.to_array(tensor)
        inputs = [self._input(given) for given in self._file.input if given.name not in self._values]
        for node in self._file.node:
            self._node(node)
        outputs = [self._output(given) for given in self._file.output]
        return self._graph.network(self._name, inputs, outputs)

    def _check_kinds(self, kinds: list[str]) -> None:
        if dynamic := next((kind for kind in kinds if kind in _DYNAMIC), None):
            raise QuantizationError(
                f"its scales are computed anew when it runs ({dynamic}), and the chip has no unit for that. Fix them: "
                "onnxruntime.quantization.quantize_static(...) in place of quantize_dynamic."
            )
        if not any(kind.startswith("QLinear") or kind in (*_QUANTIZED, "QGemm") for kind in kinds):
            raise QuantizationError(
                "it holds no scales, because it is not quantized. Quantize it, "
                "onnxruntime.quantization.quantize_static(...), or compile the model that it was exported from, with "
                "calibration=."
            )

    def _input(self, given: Any) -> Port:
        kind, tensor_type = given.type.WhichOneof("value"), given.type.tensor_type
        dtype = (
            np.dtype(self._onnx.helper.tensor_dtype_to_np_dtype(tensor_type.elem_type))
            if kind == "tensor_type"
            else None
        )
        sizes = [size.dim_value if size.HasField("dim_value") else 0 for size in tensor_type.shape.dim]
        if dtype is None or dtype.name not in _INPUTS or not sizes or min(sizes[1:], default=1) < 1:
            raise QuantizationError(
                f"its input {given.name!r:.100} has {sizes or 'no axes'} of {dtype or kind}, and the chip needs "
                "numbers whose axes have fixed sizes, after the batch as the first: export the model with them."
            )
        shape = canonical_shape(sizes[1:])
        if math.prod(shape) > MAX_NUMBERS:
            raise QuantizationError(f"its input {given.name!r:.100} has {math.prod(shape):,} numbers for each example.")
        self._graph.layer, self._batch = "input", sizes[0]
        own = plain(dtype) if dtype.name in ("int8", "uint8", "int16", "uint16") else None
        tensor = self._graph.tensor(given.name, shape, own)
        self._values[given.name] = HeldTensor(
            tensor, tuple(sizes[1:]), is_float=own is None, stored=dtype.name if own else ""
        )
        return Port(tensor, tuple(sizes[1:]), dtype.name)

    def _node(self, node: Any) -> None:
        layer = node.name or (node.output[0] if node.output else node.op_type)
        self._graph.layer = layer
        missing = next((name for name in node.input if name not in self._values), None)
        if missing is not None:
            raise ValueError(f"{layer!r:.100} takes {missing!r:.100}, which is not made before it")
        attributes = Attributes((entry.name, self._onnx.helper.get_attribute_value(entry)) for entry in node.attribute)
        entry = OnnxNode(node.op_type, layer, attributes, self._opset, self._graph, len(node.output), self._batch)
        if node.domain not in ("", "ai.onnx") and (node.domain != "com.microsoft" or node.op_type not in _OWN):
            raise entry.refused(f"is of the domain {node.domain!r:.100}, whose operators are not read", FLOAT)
        operands = [self._values[name] for name in node.input]
        _check_operands(entry, operands)
        results = self._results(entry, operands)
        unread = [name for name in sorted(attributes.unread) if attributes[name] != _NEUTRAL.get(name)]
        if unread:
            raise entry.refused(f"has {attributes[unread[0]]!r:.100} as {unread[0]!r:.100}, which is not read", FLOAT)
        for name, result in zip(node.output, results if isinstance(results, list) else [results], strict=False):
            self._values[name] = result

    def _results(self, node: OnnxNode, operands: list[Value | None]) -> Value | list[Value]:
        if node.kind == "QuantizeLinear":
            return self._quantize(node, operands)
        if node.kind == "DequantizeLinear":
            return dequantized(node, operands)
        if node.kind in SCALED_OPERATORS:
            return SCALED_OPERATORS[node.kind](node, operands)
        if node.kind in ("Constant", "Shape") or (operands and all(isinstance(x, np.ndarray) for x in operands)):
            return self._constant(node, operands)
        if node.kind not in OPERATORS:
            raise QuantizationError(
                f"the layer {node.layer!r:.100} is {node.kind!r:.100}, which is not read from a quantized file. Compile"
                " the model that it was exported from, with calibration=: the host computes what the chip cannot."
            )
        return OPERATORS[node.kind](node, operands)

    def _quantize(self, node: OnnxNode, operands: list[Value | None]) -> Value:
        value, scale, zero_point = (*operands, None)[:3]
        if isinstance(value, np.ndarray):
            return scaled(node, value, scale, zero_point)
        return quantized(node, activation(node, value), scale, zero_point)

    def _constant(self, node: OnnxNode, operands: list[Value | None]) -> Value:
        if node.kind == "Shape":
            (value,) = operands
            dims = value.shape if isinstance(value, np.ndarray) else (BATCH, *value.dims)  # pyright: ignore
            return np.array(dims, np.int64)[node.attributes.get("start", 0) : node.attributes.get("end")]
        if node.kind == "Constant":
            value = node.attributes[next(iter(node.attributes))]
            return self._onnx.numpy_helper.to_array(value) if hasattr(value, "dims") else np.array(value)
        if node.kind not in _FOLDED:
            raise QuantizationError(
                f"the layer {node.layer!r:.100} computes a constant by {node.kind!r:.100}: fold constants first, by "
                "onnxruntime.quantization.quant_pre_process(...)."
            )
        return self._folded(node, {str(index): operand for index, operand in enumerate(operands)})

    def _folded(self, node: OnnxNode, operands: dict[str, Any]) -> np.ndarray:
        from onnx.reference import ReferenceEvaluator

        helper = self._onnx.helper
        made = helper.make_node(
            node.kind, list(operands), ["result"], **{n: node.attributes[n] for n in node.attributes}
        )
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in operands.items()
        ]
        graph = helper.make_graph([made], "constant", inputs, [helper.make_empty_tensor_value_info("result")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])
        try:
            return ReferenceEvaluator(model).run(None, operands)[0]  # pyright: ignore
        except Exception as error:  # onnx raises any class, also for a missing attribute
            raise ValueError(f"{node.layer!r:.100}: {_first_line(error)}") from error

    def _output(self, given: Any) -> Port:
        self._graph.layer = given.name
        value = self._values.get(given.name)
        if not isinstance(value, HeldTensor | Pending):
            raise QuantizationError(f"its output {given.name!r:.100} does not depend on an input: leave it out.")
        held, declared = self._graph.held(value), given.type.tensor_type.elem_type
        dtype = np.dtype(self._onnx.helper.tensor_dtype_to_np_dtype(declared) if declared else held.stored or "float32")
        if dtype.name in ("int8", "uint8", "int16", "uint16"):
            if held.stored != dtype.name:
                raise QuantizationError(f"its output {given.name!r:.100} is not quantized to {dtype}: make it a float.")
            held = self._graph.reread(held, plain(dtype))
        held = self._graph.rows(held)
        return Port(held.tensor, held.dims, dtype.name if dtype.name in _INPUTS else "float32")


_FOLDED = ("Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators of constants whose results are no larger than their operands."""

_OWN = (*SCALED_OPERATORS, *_QUANTIZED, "Gelu")
"""Operators of onnxruntime's own domain that are read."""

_NEUTRAL = {
    "allowzero": 0,
    "channels_last": 0,
    "noop_with_empty_axes": 0,
    "output_dtype": 1,
    "precision": 0,
    "saturate": 1,
    "stash_type": 1,
    "storage_order": 0,
}
"""Attributes that need not be read if they have these values."""

_UNUSED = {"Dropout": ("ratio", "seed")}
"""Attributes that change nothing after training."""

_OF_INTEGERS = {*SCALED_OPERATORS, *_QUANTIZED, *_FOLDED, "Flatten", "MaxPool", "Shape", "Split"}
"""Operators that may take integers that are not dequantized."""


def _check_operands(node: OnnxNode, operands: Sequence[Value | None]) -> None:
    for name in _UNUSED.get(node.kind, ()):
        node.attributes.get(name)
    for index, value in enumerate(operands):
        if isinstance(value, np.ndarray) and value.dtype == np.int64 and (value == BATCH).any():
            moves = node.kind in _FOLDED and (index == 0 or node.kind == "Concat")
            if not (moves or (node.kind == "Reshape" and index == 1)) or node.attributes.get("to", 7) != 7:
                raise node.refused("computes with the size of the batch, and the chip computes each example", FLOAT)
        if isinstance(value, HeldTensor) and value.stored and node.kind not in _OF_INTEGERS:
            raise node.refused(f"computes with integers ({value.stored}) that are not dequantized", FLOAT)
