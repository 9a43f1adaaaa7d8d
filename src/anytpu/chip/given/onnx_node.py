"""`OnnxNode`: a node of a quantized ONNX file, and its scales."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from anytpu.chip.given.integer_graph import IntegerGraph
from anytpu.chip.given.values import HeldTensor, Pending, Scaled, Value
from anytpu.chip.graph.nodes import Quantization
from anytpu.errors import QuantizationError

Operands = Sequence[Value | None]


BATCH = -(2**40)
"""The size of the batch among the sizes that `Shape` returns."""


class Attributes(dict[str, Any]):
    """The attributes of a node, which remember the ones that are read."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.unread: set[str] = set(self)

    def __getitem__(self, name: str) -> Any:
        self.unread.discard(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or a default."""
        self.unread.discard(name)
        return super().get(name, default)


@dataclasses.dataclass(frozen=True, eq=False)
class OnnxNode:
    """A node of the file.

    Attributes:
        kind: its operator.
        layer: its name.
        attributes: its attributes as Python values.
        opset: version of the operators.
        graph: the graph that its nodes are added to.
        outputs: number of its results.
        batch: number of examples for which the file is written; 0: any.
    """

    kind: str
    layer: str
    attributes: Attributes
    opset: int
    graph: IntegerGraph
    outputs: int
    batch: int

    def refused(self, why: str, next_step: str) -> QuantizationError:
        """Return an error that names the node."""
        return QuantizationError(f"the layer {self.layer!r:.100} ({self.kind}) {why}. {next_step}.")

    def numbers(self, name: str, operands: Operands, index: int) -> list[int] | None:
        """Return integers that older versions have as an attribute, and newer ones as a constant operand."""
        value = operands[index] if index < len(operands) else None
        if value is None:
            value = self.attributes.get(name)
        if value is None:
            return None
        if isinstance(value, HeldTensor | Pending | Scaled):
            raise self.refused(f"computes its {name} from an input", FLOAT)
        return [int(number) for number in np.asarray(value).reshape(-1)]

    def axis(self, rank: int, default: int = 0) -> int:
        """Return the attribute "axis" as an axis of the examples; `rank` counts the batch."""
        axis = self.attributes.get("axis", default)
        return self.example_axis(axis, rank)

    def example_axis(self, axis: int, rank: int) -> int:
        """Return an axis as one of the examples."""
        axis += rank if axis < 0 else 0
        if not 0 < axis < rank:
            raise self.refused("works along the batch, and the chip computes each example by itself", FLOAT)
        return axis - 1


FLOAT = "Compile the model that the file was exported from, with calibration="
QUANTIZE = "Quantize it with 8 bits: quantize_static(..., weight_type=QuantType.QInt8)"


def quantization_of(node: OnnxNode, scale: Value | None, zero_point: Value | None) -> Quantization:
    """Return the quantization of an activation, whose unsigned integers become signed."""
    if zero_point is None and node.kind != "QuantizeLinear":
        raise node.refused("has no zero point, so its integers may be int8 or uint8", QUANTIZE)
    node.attributes.get("axis")  # one scale has no axis
    numbers, offsets = _parameters(node, scale, zero_point)
    if numbers.size != 1 or offsets.size != 1:
        raise node.refused("has a scale for each channel of an activation, and the chip has one for all", FLOAT)
    if offsets.dtype.name not in ("int8", "uint8", "int16", "uint16"):
        raise node.refused(f"makes {offsets.dtype.name}, and the chip's activations have 8 or 16 bits", QUANTIZE)
    bits = 8 * offsets.dtype.itemsize
    moved = int(offsets.reshape(())) - (2 ** (bits - 1) if offsets.dtype.kind == "u" else 0)
    return Quantization(float(numbers.reshape(())), moved, bits)


def _parameters(node: OnnxNode, scale: Value | None, zero_point: Value | None) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(scale, np.ndarray) or not isinstance(zero_point, np.ndarray | None):
        raise node.refused("takes a scale that is computed when it runs, and the chip's are fixed", STATIC)
    if node.attributes.get("block_size", 0):
        raise node.refused("has a scale for each block of a channel, and the chip has one for each channel", QUANTIZE)
    wanted = node.attributes.get("output_dtype", 0) if node.kind == "QuantizeLinear" else 0
    if wanted not in _WRITTEN:
        raise node.refused("makes other integers than of 8 or 16 bits", QUANTIZE)
    offsets = np.zeros(scale.shape, _WRITTEN[wanted]) if zero_point is None else zero_point
    return scale.astype(np.float32), offsets


_WRITTEN = {0: np.uint8, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16}
"""Integers of QuantizeLinear, by its attribute "output_dtype"."""


STATIC = "Fix it: onnxruntime.quantization.quantize_static(...) in place of quantize_dynamic"


def scaled(node: OnnxNode, reals: np.ndarray, scale: Value | None, zero_point: Value | None) -> np.ndarray:
    """Return a constant of real numbers in integers: QuantizeLinear."""
    numbers, offsets = _parameters(node, scale, zero_point)
    ends = np.iinfo(offsets.dtype)
    scales = Scaled(reals, numbers, offsets, node.attributes.get("axis", 1) % max(reals.ndim, 1))
    return scales.quantized(reals, ends.min, ends.max).astype(offsets.dtype)


def dequantized(node: OnnxNode, operands: Operands, axis: int | None = None) -> Value:
    """Return a value with its scales: DequantizeLinear, or an operand of an operator whose scales have an axis."""
    value, scale, zero_point = (*operands, None)[:3]
    if isinstance(value, np.ndarray):
        numbers, offsets = _parameters(node, scale, zero_point)
        if value.dtype.name not in ("int8", "uint8", "int32"):
            raise node.refused(f"has a constant of {value.dtype.name}, and the chip's weights are int8", QUANTIZE)
        along = (node.attributes.get("axis", 1) if axis is None else axis) % max(value.ndim, 1)
        for array in (numbers, offsets):
            if array.size != 1 and array.size != (value.shape[along] if value.ndim else 1):
                raise ValueError(f"{array.size} scales of {node.layer!r:.100} for {list(value.shape)}")
        if not bool((numbers > 0).all() and np.isfinite(numbers).all()):
            raise ValueError(f"a scale of {node.layer!r:.100} is not above 0")
        return Scaled(value, numbers.reshape(-1), offsets.astype(np.int64).reshape(-1), along)
    held = node.graph.held(activation(node, value))
    if zero_point is None and held.stored:
        zero_point = np.zeros((), held.stored)
    return dataclasses.replace(node.graph.reread(held, quantization_of(node, scale, zero_point)), stored="")


def quantized(node: OnnxNode, value: HeldTensor | Pending, scale: Value | None, zero_point: Value | None) -> HeldTensor:
    """Return an activation in stored integers: QuantizeLinear."""
    made = node.graph.quantized(value, quantization_of(node, scale, zero_point))
    return dataclasses.replace(made, stored=_parameters(node, scale, zero_point)[1].dtype.name)


def plain(dtype: np.dtype) -> Quantization:
    """Return the quantization with which the integers of a dtype are the numbers themselves."""
    bits = 8 * dtype.itemsize
    return Quantization(1.0, -(2 ** (bits - 1)) if dtype.kind == "u" else 0, bits)


def activation(node: OnnxNode, value: Value | None) -> HeldTensor | Pending:
    """Return a value that must be no constant."""
    if not isinstance(value, HeldTensor | Pending):
        raise node.refused("takes a constant where an activation is expected", FLOAT)
    return value


def number(node: OnnxNode, operands: Operands, index: int, name: str) -> float | None:
    """Return a number that older versions have as an attribute, and newer ones as a constant operand."""
    value = operands[index] if index < len(operands) else None
    if isinstance(value, Scaled):
        value = value.reals
    value = node.attributes.get(name) if value is None else value
    if isinstance(value, HeldTensor | Pending):
        raise node.refused(f"computes its {name} from an input", FLOAT)
    return None if value is None else float(np.asarray(value).reshape(()))
