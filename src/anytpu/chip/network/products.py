"""Products with weights: dense layers and convolutions, brought to one form.

Idea: a product that sums over the last axes of a value is a dense layer at each of the positions before them. So it is
a convolution with a kernel of one position over `(1, positions, summed)`. A product over a whole image flattens it
first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from anytpu.chip.graph.nodes import Pair, Shape
from anytpu.chip.graph.shapes import Geometry
from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.resampling import MAX_LINES
from anytpu.chip.network.trace import OperationTrace


@dataclasses.dataclass(frozen=True, eq=False)
class ConvolutionSpec:
    """A convolution without its names.

    Attributes:
        source: shape of the input.
        result: shape of the output.
        weights: as in `Convolution`.
        geometry: steps of the kernel.
        spread: distance of the input's positions along height and width; above 1 it is a transposed convolution, and
            the positions between hold 0.
    """

    source: Shape
    result: Shape
    weights: np.ndarray
    geometry: Geometry
    spread: Pair = (1, 1)


def fits(operation: Operation, trace: OperationTrace) -> bool:
    """Return whether a product multiplies a value with weights, in a form that the chip has."""
    if not isinstance(operation.operands[0], str) or not isinstance(operation.operands[1], np.ndarray):
        return False
    return _dense_fits(operation, trace) if operation.name == "dot_general" else _convolution_fits(operation, trace)


def product_of(operation: Operation, trace: OperationTrace, graph: NetworkGraph) -> ConvolutionSpec:
    """Return a product that fits as a convolution."""
    return _dense(operation, trace, graph) if operation.name == "dot_general" else _convolution(operation, trace, graph)


def _dense_fits(operation: Operation, trace: OperationTrace) -> bool:
    (value,) = operation.values
    numbers, layout = operation.attributes["dot_dimension_numbers"], trace.layouts[value]
    rank = len(trace.example(value))
    summed = sorted(layout.example_axis(axis) for axis in numbers["lhs_contracting"])
    return not numbers["lhs_batching"] and summed == list(range(rank - len(summed), rank)) and bool(summed)


def _dense(operation: Operation, trace: OperationTrace, graph: NetworkGraph) -> ConvolutionSpec:
    (value,) = operation.values
    numbers, layout = operation.attributes["dot_dimension_numbers"], trace.layouts[value]
    weights = operation.operands[1]
    assert isinstance(weights, np.ndarray)
    places = sorted(
        range(len(numbers["lhs_contracting"])), key=lambda n: layout.example_axis(numbers["lhs_contracting"][n])
    )
    contracted = [numbers["rhs_contracting"][n] for n in places]
    free = [axis for axis in range(weights.ndim) if axis not in contracted]
    depth = math.prod(weights.shape[axis] for axis in contracted)
    kernel = graph.shared(_matrix, weights, (*contracted, *free), depth)
    shape, source = trace.example(value), trace.shape(value)
    if source[2] != depth or len(contracted) != 1:
        source = (1, math.prod(shape[: len(shape) - len(contracted)]), depth)
    return ConvolutionSpec(source, (source[0], source[1], kernel.shape[3]), kernel, Geometry())


def _convolution_fits(operation: Operation, trace: OperationTrace) -> bool:
    (value,) = operation.values
    numbers, layout = operation.attributes["dimension_numbers"], trace.layouts[value]
    order = [layout.example_axis(axis) for axis in numbers["input"][1:]]
    gives = [trace.layouts[operation.result].example_axis(axis) for axis in numbers["output"][1:]]
    known = order == sorted(order) and gives == sorted(gives) and len(order) in (2, 3)
    attributes = operation.attributes
    spread = [max(attributes.get(name, [1])) for name in ("lhs_dilation", "window_strides", "rhs_dilation")]
    positions = math.prod(trace.shape(operation.result)[:2])
    return known and not layout.is_merged and (spread[0] == 1 or (spread[1:] == [1, 1] and positions <= MAX_LINES))


def _convolution(operation: Operation, trace: OperationTrace, graph: NetworkGraph) -> ConvolutionSpec:
    (value,) = operation.values
    numbers, attributes = operation.attributes["dimension_numbers"], operation.attributes
    kernel = operation.operands[1]
    assert isinstance(kernel, np.ndarray)
    flipped = tuple(n for n, backwards in enumerate(attributes.get("window_reversal", [])) if backwards)
    spread = pair_of(attributes, "lhs_dilation", kernel.ndim - 2)
    return ConvolutionSpec(
        source=trace.shape(value),
        result=trace.shape(operation.result),
        weights=graph.shared(_kernel, kernel, tuple(numbers["kernel"]), flipped),
        geometry=geometry_of(attributes, kernel.ndim - 2),
        spread=spread,
    )


def geometry_of(attributes: Mapping[str, Any], spatial: int) -> Geometry:
    """Return the steps of a convolution of StableHLO along one or two axes, by its attributes."""
    strides, dilation = (pair_of(attributes, name, spatial) for name in ("window_strides", "rhs_dilation"))
    pads = [(int(low), int(high)) for low, high in attributes.get("padding", [[0, 0]] * spatial)]
    padding = [(0, 0), *pads] if spatial == 1 else pads
    return Geometry(strides, dilation, (padding[0], padding[1]), attributes["feature_group_count"])


def pair_of(attributes: Mapping[str, Any], name: str, spatial: int) -> Pair:
    """Return an attribute along height and width; 1 by default."""
    sizes = attributes.get(name, [1] * spatial)
    return (1, sizes[0]) if spatial == 1 else (sizes[0], sizes[1])


def _matrix(weights: np.ndarray, order: tuple[int, ...], depth: int) -> np.ndarray:
    return np.ascontiguousarray(weights.transpose(order).reshape(1, 1, depth, -1), np.float32)


def _kernel(weights: np.ndarray, order: tuple[int, ...], flipped: tuple[int, ...]) -> np.ndarray:
    ordered = np.flip(weights.transpose(order), flipped)
    return np.ascontiguousarray(ordered if ordered.ndim == 4 else ordered[None], np.float32)
