"""`Network`: a model as the few kinds of layers that the chip knows, for one example. This file is the specification.

Idea: a Program is hundreds of small operations of StableHLO. `read` folds them into these nodes, in floating point. A
product of any kind is a `Convolution`, and a chain of functions of one number is a `Function`. Operations without an
instruction of the chip are a `HostStep`. `quantize` makes the same graph again in integers: its tensors have a
`Quantization`, its weights are int8, and its functions are tables.

Rule: every tensor is `(height, width, channels)` for one example. A vector is `(1, 1, channels)`, and a sequence is
`(1, time, channels)`. A tensor of more axes is `(1, all the others, the last)`. Nodes are in topological order, and
each tensor is made by one node or is an input.

Rule: every implementation computes the same integers, bit for bit. There are three: `quantized/reference.py`, the
chip's instructions, and onnxruntime on the model that `to_onnx` writes. The arithmetic is ONNX's. An integer q
represents the real number (q - zero_point) * scale. Sums are int32. A sum is scaled in float32 (IEEE single, one
rounding per operation), rounded half to even, offset by the zero point, and clipped:

    clip(rint(f32(sum) * multiplier) + zero_point, low, high)

Source: ONNX operators QLinearConv, QLinearMatMul, QuantizeLinear and DequantizeLinear
(https://onnx.ai/onnx/operators).
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from anytpu.errors import ChipError

Shape = tuple[int, int, int]
"""(height, width, channels) of one example."""

Pair = tuple[int, int]
"""Values of the two spatial axes: (height, width)."""

Padding = tuple[Pair, Pair]
"""((top, bottom), (left, right)); negative numbers crop."""

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
    if not isinstance(bits, int | np.integer) or bits not in (8, 16):
        return "bits", f"bits must be 8 or 16, not {bits!r}."
    maximum = 2 ** (bits - 1) - 1
    is_whole = isinstance(zero_point, int | np.integer) and not isinstance(zero_point, bool)
    if not is_whole or zero_point < -maximum - 1 or zero_point > maximum:
        return (
            "zero_point",
            f"a zero point of {bits} bits is an integer from {-maximum - 1} to {maximum}, not {zero_point!r}.",
        )
    return None


@dataclasses.dataclass(frozen=True)
class Node:
    """The base of all nodes.

    Attributes:
        name: name of the node, unique in the network ("conv2d_1/convolution").
        layer: the layer of the user's model that it came from ("conv2d_1"); "" if unknown.
        inputs: names of its input tensors.
        output: name of its output tensor.
    """

    name: str
    layer: str
    inputs: tuple[str, ...]
    output: str


UNSCALED = np.zeros(0, np.float32)
"""The `weight_scales` of a convolution in floats."""


class _Clipped:
    """A node whose result is clipped."""

    low: float | None
    high: float | None

    @property
    def bounds(self) -> tuple[int, int]:
        """The bounds of the clip of a node in integers."""
        assert self.low is not None and self.high is not None
        return int(self.low), int(self.high)


@dataclasses.dataclass(frozen=True, eq=False)
class Convolution(_Clipped, Node):
    """A convolution or a dense layer (a kernel of one position), with its bias and the clip of its result.

    In integers it is QLinearConv, or QLinearMatMul for a kernel of one position, with weights of zero point 0. The
    module's rule applies to this sum for each output channel m:

        sum[m] = bias[m] + sum over the kernel of weights[..., m] * (q - input zero_point).

    Its multiplier is:

        multiplier[m] = f32(f32(input scale * weight_scales[m]) / output scale).

    Sums are int32 and wrap. Positions outside the input hold its zero point.

    Attributes:
        weights: `(kernel height, kernel width, input channels / groups, output channels)`, float32; int8 in
            [-127, 127].
        weight_scales: scale of each output channel, float32 `(output channels,)`; `UNSCALED` for float32 weights.
        bias: `(output channels,)`, float32; int32 in steps of input scale * weight scale.
        strides: step of the kernel along height and width, in positions.
        dilation: distance of adjacent kernel taps along height and width, in positions.
        padding: positions added before and after, along height and width; a negative number crops.
        groups: number of channel groups; output group g reads input group g only, as in XLA.
        low, high: bounds of the clip, `(0, inf)` for ReLU, None: no clip; integers of the output, its whole range
            without a clip.
    """

    weights: np.ndarray
    weight_scales: np.ndarray
    bias: np.ndarray
    strides: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Padding = ((0, 0), (0, 0))
    groups: int = 1
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class Pool(Node):
    """A maximum or an average over windows of positions.

    "max": the maximum over the window's positions inside the input. In integers, it is the zero point if there are
    none, and input and output have the same quantization.

    "average": in integers, the int32 sum of (q - input zero_point) over the window's positions inside the input. The
    module's rule applies to the sum, with this multiplier:

        multiplier = f32(f32(input scale * f32(1 / n)) / output scale).

    With `counts_padding`, n is the number of positions of the window. This equals QLinearConv with weights 1 and weight
    scale f32(1 / n). Otherwise n counts only the positions inside the input, for each window, and is at least 1.

    Attributes:
        kind: "max" or "average".
        window: height and width of the window, in positions; of a global pool the whole image.
        strides: step of the window along height and width, in positions.
        padding: positions added before and after, along height and width; a negative number crops.
        counts_padding: whether an average divides by all positions of the window.
    """

    kind: Literal["max", "average"]
    window: Pair
    strides: Pair
    padding: Padding = ((0, 0), (0, 0))
    counts_padding: bool = False


@dataclasses.dataclass(frozen=True)
class Elementwise(_Clipped, Node):
    """An elementwise operation of two tensors; the second may be `(1, 1, channels)`, broadcast over all positions.

    In integers it is DequantizeLinear of both, the float32 operation, QuantizeLinear, and the clip:

        clip(rint((f32(qa - za) * sa  op  f32(qb - zb) * sb) / s) + z, low, high), each operation rounded to float32.

    Attributes:
        kind: the operation: "add", "subtract" or "multiply".
        low, high: bounds of the clip, None: no clip; integers of the output.
    """

    kind: Literal["add", "subtract", "multiply"]
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Function(Node):
    """A function of one number, applied to each element: sigmoid, tanh, gelu, or any chain of such.

    Attributes:
        kind: its common name ("sigmoid", "tanh", "clip", ...); "function" if it has none.
        apply: float32 array -> float32 array of the same shape.
    """

    kind: str
    apply: Callable[[np.ndarray], np.ndarray] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, eq=False)
class Table(Node):
    """A function in integers, as a lookup table: output = table[q - minimum integer of the input].

    Every `Function` becomes a table, quantize(f(dequantize(q))), and so does a requantization. The table is the
    specification.

    Attributes:
        kind: common name of the function; "requantize" for a change of scale.
        table: output integers, in the output's dtype: `(256,)` for an 8-bit input, `(65536,)` for a 16-bit input.
    """

    kind: str
    table: np.ndarray


@dataclasses.dataclass(frozen=True)
class Concatenate(Node):
    """A concatenation of tensors along axis 0 (height), 1 (width, time of a sequence) or 2 (channels).

    In integers, all tensors have the same quantization.
    """

    axis: int


@dataclasses.dataclass(frozen=True)
class Slice(Node):
    """A part of a tensor: from `start` up to `stop`, excluded, along an axis (0 height, 1 width, 2 channels)."""

    axis: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Reshape(Node):
    """The same numbers, in the same row-major order of (height, width, channels), as another shape."""


@dataclasses.dataclass(frozen=True, eq=False)
class HostStep(Node):
    """Operations that the chip has no instruction for, computed by the host in float32.

    In integers, its inputs are dequantized and its output is quantized. A tensor without a quantization is a plain
    float or integer array, and stays as it is. Examples are an embedding's indices, and a softmax that is an output.

    Attributes:
        kind: its kind, for the listing ("softmax", "embedding", or the name of the operation).
        why: the reason why the chip cannot, for the listing ("it divides one tensor by another").
        steps: the operations, as `network/operations.py` evaluates and writes them.
    """

    kind: str
    why: str
    steps: Any = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or an output of the user's program.

    Attributes:
        tensor: name of its tensor in the network.
        shape: the user's shape of one example, `()` for a number.
        dtype: the user's dtype ("float32", "int32").
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """A model.

    Attributes:
        name: name of the model.
        inputs, outputs: inputs and outputs of the user's program, in order.
        shapes: maps each tensor to its shape for one example, `(height, width, channels)`.
        quantizations: maps each tensor that the chip holds in integers to its quantization; empty for a network in
            floats. Tensors that only the host uses are absent.
        nodes: the nodes, in topological order.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    shapes: Mapping[str, Shape]
    quantizations: Mapping[str, Quantization]
    nodes: tuple[Node, ...]
