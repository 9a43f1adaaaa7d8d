"""`QuantizedNetwork`: an integer network, and the exact semantics of each node. This file is the specification.

Idea: every implementation must compute the same integers, bit for bit. There are three: the reference in
`reference.py`, the chip's instructions, and onnxruntime on the model that `to_onnx` writes.

Rule: the arithmetic is ONNX's. An integer q represents the real number (q - zero_point) * scale. Sums are int32. A sum
is scaled in float32 (IEEE single, one rounding per operation), rounded half to even, offset by the zero point, and
clipped:

    clip(rint(f32(sum) * multiplier) + zero_point, low, high)

Source: ONNX operators QLinearConv, QLinearMatMul, QuantizeLinear and DequantizeLinear
(https://onnx.ai/onnx/operators).
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from anytpu.chip.network.nodes import HostStep, Node, Padding, Pair, Port, Shape
from anytpu.errors import ChipError

_MIN_SCALE = float(np.finfo(np.float32).smallest_subnormal)
_MAX_SCALE = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Quantization:
    """The scale and zero point of a tensor: real = (q - zero_point) * scale.

    Attributes:
        scale: real difference between consecutive integers, a float32 value above 0.
        zero_point: integer that represents 0, within the range of `bits`.
        bits: bits per signed integer, 8 or 16.

    Raises:
        ChipError: an attribute is invalid.
    """

    scale: float
    zero_point: int = 0
    bits: int = 8

    def __post_init__(self):
        fault = fault_in_quantization(self.scale, self.zero_point, self.bits)
        if fault is not None:
            raise ChipError(fault[1])

    @property
    def low(self) -> int:
        """The minimum integer."""
        return -(2 ** (self.bits - 1))

    @property
    def high(self) -> int:
        """The maximum integer."""
        return 2 ** (self.bits - 1) - 1

    @property
    def dtype(self) -> np.dtype:
        """int8 or int16."""
        return np.dtype(f"int{self.bits}")

    def quantize(self, x: np.ndarray) -> np.ndarray:
        """Return the integers nearest to real numbers: QuantizeLinear.

        Example:
            >>> Quantization(0.5, 10).quantize(np.float32([-1, 0.25, 0.75, 1e6]))
            array([  8,  10,  12, 127], dtype=int8)
        """
        scaled = np.rint(np.asarray(x, np.float32) / np.float32(self.scale))
        return np.clip(scaled.astype(np.float64) + self.zero_point, self.low, self.high).astype(self.dtype)

    def dequantize(self, q: np.ndarray) -> np.ndarray:
        """Return the real numbers that integers represent, float32: DequantizeLinear."""
        return (np.asarray(q, np.int32) - np.int32(self.zero_point)).astype(np.float32) * np.float32(self.scale)


def fault_in_quantization(scale: Any, zero_point: Any, bits: Any) -> tuple[str, str] | None:
    """Return the name of an invalid attribute of a quantization and an explanation; None if all are valid.

    Example:
        >>> fault_in_quantization(0.5, 200, 8)
        ('zero_point', 'a zero point of 8 bits is an integer from -128 to 127, not 200.')
    """
    is_number = isinstance(scale, numbers.Real) and not isinstance(scale, bool)
    if not is_number or scale < _MIN_SCALE or not scale <= _MAX_SCALE:
        return "scale", f"a scale is a float32 number above 0, not {scale!r}."
    if isinstance(bits, bool) or bits not in (8, 16):
        return "bits", f"bits must be 8 or 16, not {bits!r}."
    maximum = 2 ** (bits - 1) - 1
    is_whole = isinstance(zero_point, int | np.integer) and not isinstance(zero_point, bool)
    if not is_whole or zero_point < -maximum - 1 or zero_point > maximum:
        return (
            "zero_point",
            f"a zero point of {bits} bits is an integer from {-maximum - 1} to {maximum}, not {zero_point!r}.",
        )
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class QConvolution(Node):
    """QLinearConv, or QLinearMatMul for a kernel of one position, with weights of zero point 0.

    The module's rule applies to this sum for each output channel m:

        sum[m] = bias[m] + sum over the kernel of weights[..., m] * (q - input zero_point).

    Its multiplier is:

        multiplier[m] = f32(f32(input scale * weight_scales[m]) / output scale).

    Sums are int32 and wrap. Positions outside the input hold its zero point.

    Attributes:
        weights: int8 in [-127, 127], `(kernel height, kernel width, input channels / groups, output channels)`.
        weight_scales: scale of each output channel, float32 `(output channels,)`.
        bias: int32 `(output channels,)`, in steps of input scale * weight scale.
        strides: step of the kernel along height and width, in positions.
        dilation: distance of adjacent kernel taps along height and width, in positions.
        padding: positions added before and after, along height and width; a negative number crops.
        groups: number of channel groups; output group g reads input group g only.
        low, high: bounds of the clip, integers of the output; by default its whole range.
    """

    weights: np.ndarray
    weight_scales: np.ndarray
    bias: np.ndarray
    strides: Pair
    dilation: Pair
    padding: Padding
    groups: int
    low: int
    high: int


@dataclasses.dataclass(frozen=True)
class QPool(Node):
    """A max or average pool over windows of positions.

    "max": the maximum integer over the window's positions inside the input. If there are none, it is the zero point.
    Input and output have the same quantization.

    "average": the int32 sum of (q - input zero_point) over the window's positions inside the input. The module's rule
    applies to the sum, with this multiplier:

        multiplier = f32(f32(input scale * f32(1 / n)) / output scale).

    With `counts_padding`, n is the number of positions of the window. This equals QLinearConv with weights 1 and weight
    scale f32(1 / n). Otherwise n counts only the positions inside the input, for each window, and is at least 1.

    Attributes:
        kind: "max" or "average".
        window: height and width of the window, in positions.
        strides: step of the window along height and width, in positions.
        padding: positions added before and after, along height and width; a negative number crops.
        counts_padding: whether an average divides by all positions of the window.
    """

    kind: Literal["max", "average"]
    window: Pair
    strides: Pair
    padding: Padding
    counts_padding: bool


@dataclasses.dataclass(frozen=True)
class QElementwise(Node):
    """An elementwise operation on two tensors: DequantizeLinear of both, float32 operation, QuantizeLinear, clip.

    clip(rint((f32(qa - za) * sa  op  f32(qb - zb) * sb) / s) + z, low, high), each operation rounded to float32.

    Attributes:
        kind: the operation: "add", "subtract" or "multiply".
        low, high: bounds of the clip, integers of the output.
    """

    kind: Literal["add", "subtract", "multiply"]
    low: int
    high: int


@dataclasses.dataclass(frozen=True, eq=False)
class QTable(Node):
    """A lookup table: output = table[q - minimum integer of the input].

    Every `Function` becomes a table, quantize(f(dequantize(q))), and so does a requantization. The table is the
    specification.

    Attributes:
        kind: common name of the function; "requantize" for a change of scale.
        table: output integers, in the output's dtype: `(256,)` for an 8-bit input, `(65536,)` for a 16-bit input.
    """

    kind: str
    table: np.ndarray


@dataclasses.dataclass(frozen=True)
class QConcatenate(Node):
    """Concatenation of tensors with equal quantization, along axis 0 (height), 1 (width) or 2 (channels)."""

    axis: int


@dataclasses.dataclass(frozen=True)
class QSlice(Node):
    """A slice from `start` to `stop` along one axis, with the input's quantization."""

    axis: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class QReshape(Node):
    """A row-major reshape, with the input's quantization."""


@dataclasses.dataclass(frozen=True, eq=False)
class QHostStep(Node):
    """A host step: dequantize the inputs, compute the float step, quantize the output.

    A tensor without an entry in `QuantizedNetwork.quantizations` is a plain float or integer array. It is neither
    dequantized nor quantized: for example an embedding's indices, or a softmax that is the model's output.

    Attributes:
        step: the float step.
    """

    step: HostStep


@dataclasses.dataclass(frozen=True, eq=False)
class QuantizedNetwork:
    """An integer network.

    Attributes:
        name: name of the model.
        inputs, outputs: the model's inputs and outputs, in order.
        shapes: maps each tensor to its shape for one example, `(height, width, channels)`.
        quantizations: maps each chip tensor to its quantization; tensors that only the host uses are absent.
        nodes: the nodes, in topological order.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    shapes: Mapping[str, Shape]
    quantizations: Mapping[str, Quantization]
    nodes: tuple[Node, ...]
