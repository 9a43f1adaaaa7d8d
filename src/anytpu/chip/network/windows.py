"""Products and pools as nodes: operations with a kernel or a window."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anytpu.chip.graph.nodes import UNSCALED, Convolution, Pool
from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.placement import LoweringKind
from anytpu.chip.network.pooling import WindowSum, window_of
from anytpu.chip.network.products import product_of
from anytpu.chip.network.trace import OperationTrace
from anytpu.chip.network.transposed import TransposedLowering


class WindowLowering:
    """Lowers products and pools to nodes of a graph.

    Args:
        trace: the operations.
        graph: the graph to add the nodes to.
        averages: maps the result of a sum over windows to the average that it belongs to.
    """

    def __init__(self, trace: OperationTrace, graph: NetworkGraph, averages: Mapping[str, WindowSum]):
        self._trace, self._graph, self._averages = trace, graph, averages

    def write(self, kind: LoweringKind, operation: Operation) -> None:
        """Add the nodes of a product or a pool."""
        if kind is LoweringKind.PRODUCT:
            self._product(operation)
        else:
            self._pool(operation)

    def _product(self, operation: Operation) -> None:
        product = product_of(operation, self._trace, self._graph)
        if product.spread != (1, 1):
            return TransposedLowering(operation, product, self._graph).write()
        source = self._graph.shaped(operation.values[0], product.source, operation.layer)
        plain = product.result == self._trace.shape(operation.result)
        made = operation.result if plain else f"{operation.result}/product"
        node = Convolution(
            name=made,
            layer=operation.layer,
            inputs=(source,),
            output=made,
            weights=product.weights,
            weight_scales=UNSCALED,
            bias=self._graph.shared(_nothing, product.weights.shape[3]),
            strides=product.strides,
            dilation=product.dilation,
            padding=product.padding,
            groups=product.groups,
        )
        self._graph.add(node, product.result)
        if not plain:
            self._graph.view(made, operation.result, self._trace.shape(operation.result), operation.layer)

    def _pool(self, operation: Operation) -> None:
        window, average = window_of(operation, self._trace), self._averages.get(operation.result)
        height, width, channels = self._trace.shape(operation.values[0])
        made = f"{operation.result}/pool"
        positions = [
            (size + sum(padding) - taken) // stride + 1
            for size, taken, stride, padding in zip(
                (height, width), window.size, window.strides, window.padding, strict=True
            )
        ]
        node = Pool(
            name=made,
            layer=operation.layer,
            inputs=(self._graph.tensor(operation.values[0]),),
            output=made,
            kind="max" if average is None else "average",
            window=window.size,
            strides=window.strides,
            padding=window.padding,
            counts_padding=average is not None and average.counts_padding and any(map(any, window.padding)),
        )
        self._graph.add(node, (positions[0], positions[1], channels))
        if average is not None and not np.isclose(average.factor, 1, rtol=1e-6):
            factor = np.full(channels, average.factor, np.float32)
            self._graph.affine(f"{operation.result}/sum", operation.layer, made, factor, np.zeros_like(factor))
            made = f"{operation.result}/sum"
        self._graph.view(made, operation.result, self._trace.shape(operation.result), operation.layer)


def _nothing(channels: int) -> np.ndarray:
    return np.zeros(channels, np.float32)
