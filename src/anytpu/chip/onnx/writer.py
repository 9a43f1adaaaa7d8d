"""`OnnxWriter`: the state of writing a quantized network into an ONNX graph, and its tensors' layout and integer type.

Idea: in the model every tensor is `(batch, channels, height, width)`, as ONNX's convolutions require. On the chip it is
`(batch, height, width, channels)`. A tensor with one position or one channel has the same order in both layouts, and is
reshaped instead of transposed.

Rule: 8-bit integers and their zero points are stored as uint8, offset by 128. Sums are of q - zero_point, so no result
changes. But it prevents saturation on CPUs that add pairs of int8 products in 16 bits, as x86 without VNNI does.
Integers of 16 bits are stored without an offset.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from anytpu.chip.graph.nodes import Convolution, Network, Node, Pool, Quantization, Shape
from anytpu.chip.onnx.graph import OnnxGraph

SPATIAL_AXES = (2, 3, 1)
"""The axes in the model of the axes 0 (height), 1 (width) and 2 (channels) of a chip tensor."""


@dataclasses.dataclass(frozen=True, eq=False)
class OnnxWriter:
    """The state of writing a quantized network into an ONNX graph.

    Attributes:
        network: the network.
        graph: the ONNX graph so far.
        values: maps each tensor written so far to the name of its ONNX value, `(batch, channels, height, width)`.
    """

    network: Network
    graph: OnnxGraph
    values: dict[str, str] = dataclasses.field(default_factory=dict)

    def shape(self, tensor: str) -> Shape:
        """Return the shape of a tensor, `(height, width, channels)`."""
        return self.network.shapes[tensor]

    def quantization(self, tensor: str) -> Quantization:
        """Return the quantization of a tensor that has one."""
        return self.network.quantizations[tensor]

    def inputs(self, node: Node) -> tuple[str, ...]:
        """Return the names of the values of a node's inputs."""
        return tuple(self.values[tensor] for tensor in node.inputs)

    # Integer types and offsets.

    def offset(self, quantization: Quantization) -> int:
        """Return the offset of stored integers of a quantization: 128 or 0."""
        return 128 if quantization.bits == 8 else 0

    def dtype(self, quantization: Quantization) -> np.dtype:
        """Return the dtype in the model of integers of a quantization."""
        return np.dtype(np.uint8) if quantization.bits == 8 else quantization.dtype

    def integers(self, values: np.ndarray | int, quantization: Quantization) -> np.ndarray:
        """Return integers as stored in the model, with their dtype and offset."""
        moved = np.asarray(values).astype(np.int32) + self.offset(quantization)
        return moved.astype(self.dtype(quantization))

    def weights(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return int8 weights as stored in the model, and their zero point."""
        kind = Quantization(1.0)
        return self.integers(weights, kind), self.integers(0, kind)

    def parameters(self, tensor: str) -> tuple[np.float32, np.ndarray]:
        """Return scale and zero point of a tensor, as stored in the model."""
        quantization = self.quantization(tensor)
        return np.float32(quantization.scale), self.integers(quantization.zero_point, quantization)

    # Between integers and real numbers.

    def quantize(self, value: str, tensor: str) -> str:
        """Quantize real numbers to the integers of a tensor."""
        return self.graph.add("QuantizeLinear", value, *self.parameters(tensor))

    def dequantize(self, value: str, tensor: str) -> str:
        """Dequantize the integers of a tensor to float32."""
        return self.graph.add("DequantizeLinear", value, *self.parameters(tensor))

    def round(self, scaled: str, quantization: Quantization, low: int, high: int) -> str:
        """Round real numbers, in units of the scale, half to even; add the zero point; clip.

        This equals QuantizeLinear without the division, as separate operators. Onnxruntime would fuse a QuantizeLinear
        with the preceding operators into a kernel that rounds differently.
        """
        offset = self.offset(quantization)
        rounded = self.graph.add("Round", scaled)
        moved = self.graph.add("Add", rounded, np.float32(quantization.zero_point + offset))
        clipped = self.graph.add("Clip", moved, np.float32(low + offset), np.float32(high + offset))
        return self.graph.cast(clipped, self.dtype(quantization))

    def clip(self, value: str, quantization: Quantization, low: int, high: int) -> str:
        """Clip 8-bit integers, unless the bounds are the whole range."""
        if (low, high) == (quantization.low, quantization.high):
            return value
        return self.graph.add("Clip", value, self.integers(low, quantization), self.integers(high, quantization))

    # Layout.

    def channels_first(self, value: str, shape: Shape) -> str:
        """Convert `(batch, height, width, channels)` to `(batch, channels, height, width)`."""
        height, width, channels = shape
        if height * width == 1 or channels == 1:
            return self.graph.reshape(value, (channels, height, width))
        return self.graph.transpose(value, (0, 3, 1, 2))

    def channels_last(self, value: str, shape: Shape) -> str:
        """Convert `(batch, channels, height, width)` to `(batch, height, width, channels)`."""
        height, width, channels = shape
        if height * width == 1 or channels == 1:
            return self.graph.reshape(value, shape)
        return self.graph.transpose(value, (0, 2, 3, 1))

    def crop(self, node: Convolution | Pool) -> tuple[str, list[int]]:
        """Crop a node's input by the negative part of its padding.

        Returns:
            The name of the cropped value, and the positive padding in ONNX's order: top, left, bottom, right.
        """
        value, shape, padding = self.values[node.inputs[0]], self.shape(node.inputs[0]), node.padding
        starts = [max(0, -first) for first, _ in padding]
        stops = [size - max(0, -last) for size, (_, last) in zip(shape[:2], padding, strict=True)]
        pads = [max(0, first) for first, _ in padding] + [max(0, last) for _, last in padding]
        if starts != [0, 0] or stops != list(shape[:2]):
            bounds = (np.array(numbers, np.int64) for numbers in (starts, stops, [2, 3]))
            value = self.graph.add("Slice", value, *bounds)
        return value, pads
