"""`QuantizedNetwork`: a network in whole numbers, and the exact meaning of each node. This file is the specification.

Idea: whoever computes these nodes (the plain reference in `reference.py`, the chip's instructions, onnxruntime on what
`to_onnx` wrote) must get the same integers, every bit of them.

Rule: the arithmetic is ONNX's. A tensor of integers q stands for the real numbers (q - zero_point) * scale. Sums are
of 32 bits; they are scaled in float32 (IEEE single, one rounding an operation), rounded half to even, moved by the zero
point, and clipped:

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

_LEAST_SCALE = float(np.finfo(np.float32).smallest_subnormal)
_MOST_SCALE = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Quantization:
    """How the integers of a tensor stand for real numbers: real = (q - zero_point) * scale.

    Attributes:
        scale: a float32 value, above 0.
        zero_point: the integer that stands for 0.
        bits: 8 or 16, signed.

    Raises:
        ChipError: one of them makes no sense.
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
        """The least integer."""
        return -(2 ** (self.bits - 1))

    @property
    def high(self) -> int:
        """The greatest integer."""
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
        """Return the real numbers that integers stand for, float32: DequantizeLinear."""
        return (np.asarray(q, np.int32) - np.int32(self.zero_point)).astype(np.float32) * np.float32(self.scale)


def fault_in_quantization(scale: Any, zero_point: Any, bits: Any) -> tuple[str, str] | None:
    """Return which number of a quantization makes no sense, and what is expected; None if they all do.

    Example:
        >>> fault_in_quantization(0.5, 200, 8)
        ('zero_point', 'a zero point of 8 bits is a whole number from -128 to 127, not 200.')
    """
    is_number = isinstance(scale, numbers.Real) and not isinstance(scale, bool)
    if not is_number or scale < _LEAST_SCALE or not scale <= _MOST_SCALE:
        return "scale", f"a scale is a float32 number above 0, not {scale!r}."
    if isinstance(bits, bool) or bits not in (8, 16):
        return "bits", f"bits must be 8 or 16, not {bits!r}."
    most = 2 ** (bits - 1) - 1
    is_whole = isinstance(zero_point, int | np.integer) and not isinstance(zero_point, bool)
    if not is_whole or zero_point < -most - 1 or zero_point > most:
        return (
            "zero_point",
            f"a zero point of {bits} bits is a whole number from {-most - 1} to {most}, not {zero_point!r}.",
        )
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class QConvolution(Node):
    """QLinearConv (and QLinearMatMul: a kernel of one position), of weights whose zero point is 0.

    sum[m] = bias[m] + the sum over the kernel of weights[..., m] * (q - zero_point of the input), 32 bits, wrapping;
    positions outside of the input count as its zero point. multiplier[m] = f32(f32(input scale * weight_scales[m]) /
    output scale). Then as the module's rule says.

    Attributes:
        weights: int8 in [-127, 127], `(kernel height, kernel width, input channels / groups, output channels)`.
        weight_scales: float32 `(output channels,)`.
        bias: int32 `(output channels,)`, at input scale * weight scale.
        low, high: the clip, in integers of the output; the whole range where nothing else is asked.
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
    """A pool.

    "max": the greatest integer of the window, of the positions inside the input, and the zero point if there are none;
    input and output have one quantization. "average": sum of (q - zero_point of the input) over the positions inside,
    an int32, times multiplier = f32(f32(input scale * f32(1 / n)) / output scale), then as the module's rule says. n is
    the number of positions of the window (QLinearConv with weights 1 and weight scale f32(1 / n)); without
    `counts_padding` only of those that lie inside, window by window, and 1 if there are none.
    """

    kind: Literal["max", "average"]
    window: Pair
    strides: Pair
    padding: Padding
    counts_padding: bool


@dataclasses.dataclass(frozen=True)
class QElementwise(Node):
    """Two tensors, number by number: DequantizeLinear of both, the operation in float32, QuantizeLinear, clip.

    clip(rint((f32(qa - za) * sa  op  f32(qb - zb) * sb) / s) + z, low, high), each operation rounded to float32.
    """

    kind: Literal["add", "subtract", "multiply"]
    low: int
    high: int


@dataclasses.dataclass(frozen=True, eq=False)
class QTable(Node):
    """A function of one integer, by table: output = table[q - least integer of the input].

    Every `Function` becomes one: quantize(f(dequantize(q))), and so does a change of scale. The table is the
    specification.

    Attributes:
        kind: what people call the function; "requantize" for a change of scale.
        table: integers of the output's dtype, one for each integer of the input: 256, or 65,536 for 16 bits.
    """

    kind: str
    table: np.ndarray


@dataclasses.dataclass(frozen=True)
class QConcatenate(Node):
    """Tensors of one quantization side by side, along axis 0 (height), 1 (width) or 2 (channels)."""

    axis: int


@dataclasses.dataclass(frozen=True)
class QSlice(Node):
    """A part of a tensor along one axis; the quantization stays."""

    axis: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class QReshape(Node):
    """The same integers in row-major order as another shape; the quantization stays."""


@dataclasses.dataclass(frozen=True, eq=False)
class QHostStep(Node):
    """A step of the host: inputs are dequantized, the float step is computed, its output is quantized.

    An input or an output without a quantization (`QuantizedNetwork.quantizations`) is the user's own float or integer
    array and goes in or out as it is: an embedding's indices, a softmax that is the model's output.
    """

    step: HostStep


@dataclasses.dataclass(frozen=True, eq=False)
class QuantizedNetwork:
    """A model in whole numbers.

    Attributes:
        name: what people call it.
        inputs, outputs: what goes in and comes out.
        shapes: of each tensor, `(height, width, channels)`.
        quantizations: of each tensor that the chip holds; a tensor that only the host sees has none.
        nodes: in an order in which they can be computed.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    shapes: Mapping[str, Shape]
    quantizations: Mapping[str, Quantization]
    nodes: tuple[Node, ...]
