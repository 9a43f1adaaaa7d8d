"""`Writing`: a quantized network on its way into an ONNX graph, and how its integers lie there.

Idea: inside of the model every tensor is `(batch, channels, height, width)`, as ONNX's convolutions want it; the chip's
are `(batch, height, width, channels)`. Where one of the two has but one position or one channel, they are the same
numbers in the same order, and no transpose is written.

Rule: with `unsigned`, integers of 8 bits and their zero points lie 128 higher, as uint8. That changes no result (the
sums are of q - zero point), but keeps CPUs that add pairs of products in 16 bits from saturating. Integers of 16 bits
stay as they are.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from anytpu.chip.network.nodes import Node, Padding, Shape
from anytpu.chip.onnx.graph import Graph
from anytpu.chip.quantized.nodes import Quantization, QuantizedNetwork

SPATIAL_AXES = (2, 3, 1)
"""Where the axes 0 (height), 1 (width) and 2 (channels) of a tensor of the chip lie in the model."""


@dataclasses.dataclass(frozen=True, eq=False)
class Writing:
    """A quantized network on its way into an ONNX graph.

    Attributes:
        network: the network.
        graph: what was written so far.
        unsigned: whether integers of 8 bits lie there as uint8, moved by 128.
        values: of each tensor of the network so far, the name of the value that holds it, `(batch, channels, height,
            width)`.
    """

    network: QuantizedNetwork
    graph: Graph
    unsigned: bool
    values: dict[str, str] = dataclasses.field(default_factory=dict)

    def shape(self, tensor: str) -> Shape:
        """Return the shape of a tensor, `(height, width, channels)`."""
        return self.network.shapes[tensor]

    def quantization(self, tensor: str) -> Quantization:
        """Return the quantization of a tensor that has one."""
        return self.network.quantizations[tensor]

    def inputs(self, node: Node) -> tuple[str, ...]:
        """Return the values that a node takes."""
        return tuple(self.values[tensor] for tensor in node.inputs)

    # How integers lie.

    def is_moved(self, quantization: Quantization) -> bool:
        """Tell whether integers of a quantization lie 128 higher."""
        return self.unsigned and quantization.bits == 8

    def offset(self, quantization: Quantization) -> int:
        """Return what was added to integers of a quantization: 128 or 0."""
        return 128 if self.is_moved(quantization) else 0

    def dtype(self, quantization: Quantization) -> np.dtype:
        """Return the dtype in which integers of a quantization lie."""
        return np.dtype(np.uint8) if self.is_moved(quantization) else quantization.dtype

    def integers(self, values: np.ndarray | int, quantization: Quantization) -> np.ndarray:
        """Return integers as they lie in the model: of its dtype, and moved where they are."""
        moved = np.asarray(values).astype(np.int32) + self.offset(quantization)
        return moved.astype(self.dtype(quantization))

    def weights(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return int8 weights as they lie in the model, and their zero point."""
        kind = Quantization(1.0)
        return self.integers(weights, kind), self.integers(0, kind)

    def parameters(self, tensor: str) -> tuple[np.float32, np.ndarray]:
        """Return scale and zero point of a tensor, as ONNX's operators take them."""
        quantization = self.quantization(tensor)
        return np.float32(quantization.scale), self.integers(quantization.zero_point, quantization)

    # Between integers and real numbers.

    def quantize(self, value: str, tensor: str) -> str:
        """Turn real numbers into the integers of a tensor."""
        return self.graph.add("QuantizeLinear", value, *self.parameters(tensor))

    def dequantize(self, value: str, tensor: str) -> str:
        """Turn the integers of a tensor into real numbers, float32."""
        return self.graph.add("DequantizeLinear", value, *self.parameters(tensor))

    def round(self, scaled: str, quantization: Quantization, low: int, high: int) -> str:
        """Round multiples of a scale half to even, add the zero point, clip: the end of every sum.

        This is QuantizeLinear in single steps: written as that, onnxruntime would take it together with what stands
        before it into one kernel whose rounding is another.
        """
        offset = self.offset(quantization)
        rounded = self.graph.add("Round", scaled)
        moved = self.graph.add("Add", rounded, np.float32(quantization.zero_point + offset))
        clipped = self.graph.add("Clip", moved, np.float32(low + offset), np.float32(high + offset))
        return self.graph.cast(clipped, self.dtype(quantization))

    def clip(self, value: str, quantization: Quantization, low: int, high: int) -> str:
        """Clip integers of 8 bits, where that changes any."""
        if (low, high) == (quantization.low, quantization.high):
            return value
        return self.graph.add("Clip", value, self.integers(low, quantization), self.integers(high, quantization))

    # Layout.

    def channels_first(self, value: str, shape: Shape) -> str:
        """Bring `(batch, height, width, channels)` into the model's order."""
        height, width, channels = shape
        if height * width == 1 or channels == 1:
            return self.graph.reshape(value, (channels, height, width))
        return self.graph.transpose(value, (0, 3, 1, 2))

    def channels_last(self, value: str, shape: Shape) -> str:
        """Bring the model's order back into `(batch, height, width, channels)`."""
        height, width, channels = shape
        if height * width == 1 or channels == 1:
            return self.graph.reshape(value, shape)
        return self.graph.transpose(value, (0, 2, 3, 1))

    def crop(self, value: str, shape: Shape, padding: Padding) -> tuple[str, list[int]]:
        """Do what negative padding asks for.

        Returns:
            The value that is left, and the positive padding as ONNX writes it: top, left, bottom, right.
        """
        starts = [max(0, -first) for first, _ in padding]
        stops = [size - max(0, -last) for size, (_, last) in zip(shape[:2], padding, strict=True)]
        pads = [max(0, first) for first, _ in padding] + [max(0, last) for _, last in padding]
        if starts != [0, 0] or stops != list(shape[:2]):
            bounds = (np.array(numbers, np.int64) for numbers in (starts, stops, [2, 3]))
            value = self.graph.add("Slice", value, *bounds)
        return value, pads
