"""What each node of a float network becomes in whole numbers, once all is decided.

Idea: a kind of node has one counterpart, made of the node, of the quantizations of its tensors and of nothing else.

Rule: equal arrays are made once. Steps of an unrolled loop that have the same weights, or the same function between the
same scales, share one array, so that the compiler stores it once.
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
from anytpu.chip.quantized.choices import Choices
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
    """Return a function of real numbers as a table of integers, one for each integer of its input.

    A function that has no value for some number (a logarithm below 0) has the nearest one's there.

    Raises:
        QuantizationError: it has no value anywhere.
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


class Maker:
    """Makes the nodes of a quantized network, equal arrays once."""

    def __init__(self, choices: Choices):
        self.choices = choices
        self.made: dict[Hashable, tuple[np.ndarray, ...]] = {}
        self.tables: dict[Hashable, np.ndarray] = {}

    def make(self, node: Node) -> Iterator[Node]:
        """Yield what a node becomes: what it takes in another scale, if anything, and its counterpart."""
        detours = {name: new for name in node.inputs if (new := self.choices.detours.get((node.name, name)))}
        for name, new in detours.items():
            yield self.requantize(node, name, new)
        inputs = tuple(detours.get(name, name) for name in node.inputs)
        yield _counterpart(
            node, self, {"name": node.name, "layer": node.layer, "inputs": inputs, "output": node.output}
        )

    def requantize(self, node: Node, name: str, new: str) -> QTable:
        """Return the table that changes the scale of tensor `name`, as tensor `new`; it counts for the node's layer."""
        layer = node.layer or node.name
        same = Function(new, layer, (name,), new, "requantize", _same)
        return QTable(new, layer, (name,), new, "requantize", self.table(same, name, new))

    def table(self, function: Function, source: str, target: str) -> np.ndarray:
        """Return the table of a function between two tensors."""
        given, wanted, limits = *(self.choices.quantizations[name] for name in (source, target)), self.limits(target)
        # The steps of an unrolled loop share their functions, and mostly their quantizations.
        key = function.apply, given, wanted, limits
        if key not in self.tables:
            self.tables[key] = self.once(np.clip(table(function, given, wanted), *limits))[0]
        return self.tables[key]

    def limits(self, tensor: str) -> tuple[int, int]:
        """Return the least and the greatest integer that a tensor may hold."""
        quantization = self.choices.quantizations[tensor]
        return self.choices.limits.get(tensor, (quantization.low, quantization.high))

    def clip(self, tensor: str, low: float | None, high: float | None) -> tuple[int, int]:
        """Return the clip of a tensor in integers."""
        bottom, top = clip_bounds(self.choices.quantizations[tensor], low, high)
        least, greatest = self.limits(tensor)
        return min(max(bottom, least), greatest), max(min(top, greatest), least)

    def once(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the arrays, or equal ones that were made before."""
        key = tuple((one.shape, one.dtype.str, hashlib.sha256(one.tobytes()).digest()) for one in arrays)
        return self.made.setdefault(key, arrays)


@functools.singledispatch
def _counterpart(node: Node, maker: Maker, same: Mapping[str, Any]) -> Node:
    """Return the node in whole numbers; `same` are the fields that it keeps."""
    raise NotImplementedError(f"{type(node).__name__} is no node of a network")


@_counterpart.register
def _(node: Convolution, maker: Maker, same: Mapping[str, Any]) -> QConvolution:
    source = maker.choices.quantizations[node.inputs[0]]
    low, high = maker.limits(node.inputs[0])
    reach = (low - source.zero_point, high - source.zero_point)
    weights, scales, bias = maker.once(*quantize_weights(node.weights, node.bias, source.scale, reach))
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
def _(node: Pool, maker: Maker, same: Mapping[str, Any]) -> QPool:
    return QPool(
        **same,
        kind=node.kind,
        window=node.window,
        strides=node.strides,
        padding=node.padding,
        counts_padding=node.counts_padding,
    )


@_counterpart.register
def _(node: Elementwise, maker: Maker, same: Mapping[str, Any]) -> QElementwise:
    low, high = maker.clip(node.output, node.low, node.high)
    return QElementwise(**same, kind=node.kind, low=low, high=high)


@_counterpart.register
def _(node: Function, maker: Maker, same: Mapping[str, Any]) -> QTable:
    return QTable(**same, kind=node.kind, table=maker.table(node, node.inputs[0], node.output))


@_counterpart.register
def _(node: Concatenate, maker: Maker, same: Mapping[str, Any]) -> QConcatenate:
    return QConcatenate(**same, axis=node.axis)


@_counterpart.register
def _(node: Slice, maker: Maker, same: Mapping[str, Any]) -> QSlice:
    return QSlice(**same, axis=node.axis, start=node.start, stop=node.stop)


@_counterpart.register
def _(node: Reshape, maker: Maker, same: Mapping[str, Any]) -> QReshape:
    return QReshape(**same)


@_counterpart.register
def _(node: HostStep, maker: Maker, same: Mapping[str, Any]) -> QHostStep:
    return QHostStep(**same, step=node)


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _nearest(known: np.ndarray, count: int) -> np.ndarray:
    """Return, for each index below `count`, the nearest of some sorted ones."""
    every = np.arange(count)
    after = known[np.minimum(np.searchsorted(known, every), len(known) - 1)]
    before = known[np.maximum(np.searchsorted(known, every, side="right") - 1, 0)]
    return np.where(np.abs(after - every) < np.abs(before - every), after, before)
