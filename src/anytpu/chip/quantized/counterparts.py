"""`NodeQuantizer`: convert each node of a float network to its quantized node, given the `QuantizationChoices`.

Idea: each kind of node has one quantized kind. It depends only on the node and on the quantizations of its tensors.

Rule: equal arrays are made once. Steps of an unrolled loop share their weights, and their tables if the scales are
equal. So the compiler stores each array once.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np

from anytpu.chip.network.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    Function,
    HostStep,
    Node,
    Pool,
    Reshape,
    Slice,
)
from anytpu.chip.quantized.choices import QuantizationChoices
from anytpu.chip.quantized.multipliers import clip_bounds
from anytpu.chip.quantized.nodes import (
    QConcatenate,
    QConvolution,
    QElementwise,
    QHostStep,
    QPool,
    QReshape,
    QSlice,
    QTable,
    Quantization,
)
from anytpu.chip.quantized.weights import quantize_weights
from anytpu.errors import QuantizationError


def table(function: Function, source: Quantization, target: Quantization) -> np.ndarray:
    """Return a real function as a table of output integers, with an entry for each input integer.

    If the function is NaN at an input (a logarithm below 0), the entry is the value at the nearest valid input.

    Raises:
        QuantizationError: the function is NaN at every input.
    """
    integers = np.arange(source.low, source.high + 1)
    with np.errstate(all="ignore"):
        values = np.asarray(function.apply(source.dequantize(integers)), np.float32)
    known = np.flatnonzero(~np.isnan(values))
    if len(known) == len(values):
        return target.quantize(values)
    if not known.size:
        raise QuantizationError(
            f"layer {function.layer or function.name!r}: {function.kind} is not a number for any input from "
            f"{source.dequantize(integers[:1])[0]:.4g} to {source.dequantize(integers[-1:])[0]:.4g}"
        )
    return target.quantize(values[_nearest(known, len(values))])


class NodeQuantizer:
    """Makes the nodes of a quantized network, and each distinct array once."""

    def __init__(self, choices: QuantizationChoices):
        self.choices = choices
        self.made: dict[Hashable, tuple[np.ndarray, ...]] = {}
        self.tables: dict[Hashable, np.ndarray] = {}

    def make(self, node: Node) -> Iterator[Node]:
        """Yield the quantized nodes of a node: tables that requantize its inputs, if any, and its counterpart."""
        detours = {name: new for name in node.inputs if (new := self.choices.detours.get((node.name, name)))}
        for name, new in detours.items():
            yield self.requantize(node, name, new)
        inputs = tuple(detours.get(name, name) for name in node.inputs)
        yield _counterpart(
            node, self, {"name": node.name, "layer": node.layer, "inputs": inputs, "output": node.output}
        )

    def requantize(self, node: Node, name: str, new: str) -> QTable:
        """Return a table node that requantizes tensor `name` to tensor `new`; it belongs to the node's layer."""
        layer = node.layer or node.name
        same = Function(new, layer, (name,), new, "requantize", _same)
        return QTable(new, layer, (name,), new, "requantize", self.table(same, name, new))

    def table(self, function: Function, source: str, target: str) -> np.ndarray:
        """Return the table of a function between two tensors."""
        own, wanted, limits = *(self.choices.quantizations[name] for name in (source, target)), self.limits(target)
        # The steps of an unrolled loop share their functions and, in most cases, their quantizations.
        key = function.apply, own, wanted, limits
        if key not in self.tables:
            self.tables[key] = self.once(np.clip(table(function, own, wanted), *limits))[0]
        return self.tables[key]

    def limits(self, tensor: str) -> tuple[int, int]:
        """Return the minimum and the maximum integer that a tensor may hold."""
        quantization = self.choices.quantizations[tensor]
        return self.choices.limits.get(tensor, (quantization.low, quantization.high))

    def clip(self, tensor: str, low: float | None, high: float | None) -> tuple[int, int]:
        """Return the bounds of a clip as integers of a tensor, within its limits."""
        bottom, top = clip_bounds(self.choices.quantizations[tensor], low, high)
        minimum, maximum = self.limits(tensor)
        return min(max(bottom, minimum), maximum), max(min(top, maximum), minimum)

    def once(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the arrays, or equal arrays that were made before."""
        key = tuple((array.shape, array.dtype.str, hashlib.sha256(array.tobytes()).digest()) for array in arrays)
        return self.made.setdefault(key, arrays)


@functools.singledispatch
def _counterpart(node: Node, maker: NodeQuantizer, same: Mapping[str, Any]) -> Node:
    """Return the quantized node; `same` holds the fields that it keeps."""
    raise NotImplementedError(f"{type(node).__name__} is no node of a network")


@_counterpart.register
def _(node: Convolution, maker: NodeQuantizer, same: Mapping[str, Any]) -> QConvolution:
    source = maker.choices.quantizations[node.inputs[0]]
    low, high = maker.limits(node.inputs[0])
    bounds = (low - source.zero_point, high - source.zero_point)
    weights, scales, bias = maker.once(*quantize_weights(node.weights, node.bias, source.scale, bounds))
    low, high = maker.clip(node.output, node.low, node.high)
    return QConvolution(
        **same,
        weights=weights,
        weight_scales=scales,
        bias=bias,
        strides=node.strides,
        dilation=node.dilation,
        padding=node.padding,
        groups=node.groups,
        low=low,
        high=high,
    )


@_counterpart.register
def _(node: Pool, maker: NodeQuantizer, same: Mapping[str, Any]) -> QPool:
    return QPool(
        **same,
        kind=node.kind,
        window=node.window,
        strides=node.strides,
        padding=node.padding,
        counts_padding=node.counts_padding,
    )


@_counterpart.register
def _(node: Elementwise, maker: NodeQuantizer, same: Mapping[str, Any]) -> QElementwise:
    low, high = maker.clip(node.output, node.low, node.high)
    return QElementwise(**same, kind=node.kind, low=low, high=high)


@_counterpart.register
def _(node: Function, maker: NodeQuantizer, same: Mapping[str, Any]) -> QTable:
    return QTable(**same, kind=node.kind, table=maker.table(node, node.inputs[0], node.output))


@_counterpart.register
def _(node: Concatenate, maker: NodeQuantizer, same: Mapping[str, Any]) -> QConcatenate:
    return QConcatenate(**same, axis=node.axis)


@_counterpart.register
def _(node: Slice, maker: NodeQuantizer, same: Mapping[str, Any]) -> QSlice:
    return QSlice(**same, axis=node.axis, start=node.start, stop=node.stop)


@_counterpart.register
def _(node: Reshape, maker: NodeQuantizer, same: Mapping[str, Any]) -> QReshape:
    return QReshape(**same)


@_counterpart.register
def _(node: HostStep, maker: NodeQuantizer, same: Mapping[str, Any]) -> QHostStep:
    return QHostStep(**same, step=node)


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _nearest(known: np.ndarray, count: int) -> np.ndarray:
    """Return, for each index below `count`, the nearest of the sorted indices `known`."""
    every = np.arange(count)
    after = known[np.minimum(np.searchsorted(known, every), len(known) - 1)]
    before = known[np.maximum(np.searchsorted(known, every, side="right") - 1, 0)]
    return np.where(np.abs(after - every) < np.abs(before - every), after, before)
