"""`NodeQuantizer`: convert each node of a float network to integers, given the `QuantizationChoices`.

Idea: products get integer weights, functions become tables, and clips get integer bounds. Other nodes stay as they are.

Rule: equal arrays are made once. Steps of an unrolled loop share their weights, and their tables if the scales are
equal. So the compiler stores each array once.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Hashable, Iterator

import numpy as np

from anytpu.chip.graph.arithmetic import clip_bounds
from anytpu.chip.graph.nodes import Convolution, Elementwise, Function, Node, Quantization, Table
from anytpu.chip.quantized.choices import QuantizationChoices
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
        """Yield the quantized nodes of a node: tables that requantize its inputs, if any, and the node itself."""
        detours = {name: new for name in node.inputs if (new := self.choices.detours.get((node.name, name)))}
        for name, new in detours.items():
            yield self.requantize(node, name, new)
        yield self.counterpart(dataclasses.replace(node, inputs=tuple(detours.get(name, name) for name in node.inputs)))

    def counterpart(self, node: Node) -> Node:
        """Return the same node in integers."""
        if isinstance(node, Convolution):
            source = self.choices.quantizations[node.inputs[0]]
            low, high = (limit - source.zero_point for limit in self.limits(node.inputs[0]))
            made = self.once(*quantize_weights(node.weights, node.bias, source.scale, (low, high)))
            arrays = dict(zip(("weights", "weight_scales", "bias"), made, strict=True))
            low, high = self.clip(node.output, node.low, node.high)
            return dataclasses.replace(node, **arrays, low=low, high=high)
        if isinstance(node, Elementwise):
            low, high = self.clip(node.output, node.low, node.high)
            return dataclasses.replace(node, low=low, high=high)
        if isinstance(node, Function):
            table = self.table(node, node.inputs[0], node.output)
            return Table(node.name, node.layer, node.inputs, node.output, node.kind, table)
        return node

    def requantize(self, node: Node, name: str, new: str) -> Table:
        """Return a table node that requantizes tensor `name` to tensor `new`; it belongs to the node's layer."""
        layer = node.layer or node.name
        same = Function(new, layer, (name,), new, "requantize", _same)
        return Table(new, layer, (name,), new, "requantize", self.table(same, name, new))

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


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _nearest(known: np.ndarray, count: int) -> np.ndarray:
    """Return, for each index below `count`, the nearest of the sorted indices `known`."""
    every = np.arange(count)
    after = known[np.minimum(np.searchsorted(known, every), len(known) - 1)]
    before = known[np.maximum(np.searchsorted(known, every, side="right") - 1, 0)]
    return np.where(np.abs(after - every) < np.abs(before - every), after, before)
