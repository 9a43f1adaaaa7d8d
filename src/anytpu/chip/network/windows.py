"""Products and pools as nodes: operations with a kernel or a window."""

from __future__ import annotations

import numpy as np

from anytpu.chip.graph.nodes import Pool
from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.pooling import WindowSum, window_of
from anytpu.chip.network.products import product_of
from anytpu.chip.network.trace import OperationTrace
from anytpu.chip.network.transposed import TransposedLowering


def multiply(trace: OperationTrace, graph: NetworkGraph, operation: Operation) -> None:
    """Add a product with weights."""
    product = product_of(operation, trace, graph)
    if product.spread != (1, 1):
        return TransposedLowering(operation, product, graph).write()
    source = graph.shaped(operation.values[0], product.source, operation.layer)
    plain = product.result == trace.shape(operation.result)
    made = operation.result if plain else f"{operation.result}/product"
    bias = graph.shared(_nothing, product.weights.shape[3])
    graph.product(made, operation.layer, source, product.weights, bias, product.geometry)
    if not plain:
        graph.view(made, operation.result, trace.shape(operation.result), operation.layer)


def pool(trace: OperationTrace, graph: NetworkGraph, operation: Operation, average: WindowSum | None) -> None:
    """Add a pool; `average` is the average that a sum over windows belongs to."""
    size, geometry = window_of(operation, trace)
    source, made = trace.shape(operation.values[0]), f"{operation.result}/pool"
    channels = source[2]
    node = Pool(
        name=made,
        layer=operation.layer,
        inputs=(graph.tensor(operation.values[0]),),
        output=made,
        kind="max" if average is None else "average",
        window=size,
        strides=geometry.strides,
        padding=geometry.padding,
        counts_padding=average is not None and average.counts_padding and any(map(any, geometry.padding)),
    )
    graph.add(node, geometry.result(source, size, channels))
    if average is not None and not np.isclose(average.factor, 1, rtol=1e-6):
        factor = np.full(channels, average.factor, np.float32)
        graph.affine(f"{operation.result}/sum", operation.layer, made, factor, np.zeros_like(factor))
        made = f"{operation.result}/sum"
    graph.view(made, operation.result, trace.shape(operation.result), operation.layer)


def _nothing(channels: int) -> np.ndarray:
    return np.zeros(channels, np.float32)
