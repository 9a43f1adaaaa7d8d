"""`TransposedLowering`: a transposed convolution as a few plain ones, whose results are interleaved.

Idea: a transposed convolution of stride s puts s - 1 zeros between the input's positions. So a result at an index of
remainder p, divided by s, meets every s-th tap of the kernel only. These taps are a plain convolution for each p.

Source: W. Shi et al., Is the deconvolution layer the same as a convolutional layer?, arXiv 1609.07009.
"""

from __future__ import annotations

import itertools

import numpy as np

from anytpu.chip.graph.nodes import Pair
from anytpu.chip.graph.shapes import Geometry
from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.products import ConvolutionSpec


class TransposedLowering:
    """Lowers one transposed convolution to nodes of a graph."""

    def __init__(self, operation: Operation, product: ConvolutionSpec, graph: NetworkGraph):
        self._operation, self._product, self._graph = operation, product, graph
        self._counts = [-(-size // step) for size, step in zip(product.result[:2], product.spread, strict=True)]

    def write(self) -> None:
        """Add the convolution of each remainder, and their interleaved result."""
        (height, width), channels = self._counts, self._product.result[2]
        high, wide = self._product.spread
        source = self._graph.shaped(self._operation.values[0], self._product.source, self._operation.layer)
        parts = {phase: self._phase(source, phase) for phase in itertools.product(range(high), range(wide))}
        # Positions are in row-major order, so parts side by side, as lines, are interleaved.
        lines = []
        for row in range(high):
            columns = [parts[row, column] for column in range(wide)]
            lines.append(self._interleaved(columns, (height * width, 1, channels), f"row{row}"))
        whole = self._interleaved(lines, (height, width * wide, channels), "rows")
        whole = self._graph.shaped(whole, (height * high, width * wide, channels), self._operation.layer)
        for axis in (0, 1):
            whole = self._cut(whole, axis)
        self._graph.view(whole, self._operation.result, self._product.result, self._operation.layer)

    def _phase(self, source: str, phase: Pair) -> str:
        """Add the convolution whose results have indices of these remainders."""
        kernel, padding = self._product.weights, []
        for axis in (0, 1):
            step, (low, _) = self._product.spread[axis], self._product.geometry.padding[axis]
            first = (low - phase[axis]) % step
            kernel = kernel.take(range(first, self._product.weights.shape[axis], step), axis)
            if not kernel.shape[axis]:  # no tap of the kernel meets these results
                kernel = np.zeros([1 if n == axis else size for n, size in enumerate(kernel.shape)], np.float32)
            before = (low - phase[axis] - first) // step
            after = self._counts[axis] - 1 + kernel.shape[axis] - self._product.source[axis] - before
            padding.append((before, after))
        name, channels = f"{self._operation.result}/phase{phase[0]}{phase[1]}", kernel.shape[3]
        bias = np.zeros(channels, np.float32)
        geometry = Geometry(padding=(padding[0], padding[1]), groups=self._product.geometry.groups)
        self._graph.product(name, self._operation.layer, source, np.ascontiguousarray(kernel), bias, geometry)
        return name

    def _interleaved(self, parts: list[str], shape: tuple[int, int, int], word: str) -> str:
        """Return parts, each seen as lines of a shape, line by line in turn."""
        if len(parts) == 1:
            return parts[0]
        lines = [self._graph.shaped(part, shape, self._operation.layer) for part in parts]
        return self._graph.joined(f"{self._operation.result}/{word}", self._operation.layer, lines, 1)

    def _cut(self, source: str, axis: int) -> str:
        """Return the positions of the result: the last convolutions may have computed some beyond."""
        size = self._product.result[axis]
        if self._graph.shapes[source][axis] == size:
            return source
        return self._graph.part(f"{self._operation.result}/cut{axis}", self._operation.layer, source, axis, 0, size)
