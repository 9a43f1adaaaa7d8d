"""`compute`: every tensor of a network, in floats as calibration runs it, or in integers as the chip does.

Idea: one node after the other, so that each tensor can be observed. In floats, XLA computes products and pools
(`floats.py`). In integers this is the reference, with which the compiler, chip and ONNX model are compared. Each
function implements a node's definition in `graph/nodes.py` in NumPy. Nothing is tiled, packed or fused. The code is
slow, and written to be read.

Rule: a sum is computed exactly, then wraps to int32. Every operation after a sum is rounded once to float32.

Matrix products use float64 and are exact. A product of an int8 weight and a 17-bit difference is below 2**24. So
a kernel of under 2**29 weights keeps every partial sum below 2**53, in any order of summation. Float64 holds all such
integers exactly.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip.graph.arithmetic import average_multipliers, convolution_multipliers, pool_counts
from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    Function,
    HostStep,
    Network,
    Node,
    Padding,
    Pair,
    Pool,
    Quantization,
    Reshape,
    Slice,
    Table,
)


def compute(network: Network, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Compute every tensor of a network.

    Args:
        network: the network.
        inputs: an array of real numbers for each input, `(examples, ...)` in the user's shapes.

    Returns:
        Maps each tensor's name to its values, `(examples, height, width, channels)`: integers if it has a quantization,
        else real numbers.
    """
    values = {}
    for port, array in zip(network.inputs, inputs, strict=True):
        whole = np.asarray(array).reshape(-1, *network.shapes[port.tensor])
        quantization = network.quantizations.get(port.tensor)
        if quantization is not None:
            values[port.tensor] = quantization.quantize(whole)
        else:
            values[port.tensor] = whole if np.dtype(port.dtype).kind in "iub" else whole.astype(np.float32, copy=False)
    return compute_integers(network, values)


def compute_integers(network: Network, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute every tensor of a network from quantized inputs.

    Args:
        network: the quantized network.
        values: maps each input's tensor to its values, `(examples, height, width, channels)`: integers if it has a
            quantization, else the user's own numbers.

    Returns:
        As `compute`.
    """
    tensors = dict(values)
    for node in network.nodes:
        tensors[node.output] = compute_node(node, network, [tensors[name] for name in node.inputs])
    return tensors


def outputs(network: Network, tensors: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs among a network's tensors as real numbers, in the user's shapes and dtypes."""
    arrays = []
    for port in network.outputs:
        quantization = network.quantizations.get(port.tensor)
        value = tensors[port.tensor] if quantization is None else quantization.dequantize(tensors[port.tensor])
        arrays.append(value.reshape(len(value), *port.shape).astype(port.dtype))
    return arrays


@functools.singledispatch
def compute_node(node: Node, network: Network, values: Sequence[np.ndarray]) -> np.ndarray:
    """Compute one node of a network.

    Args:
        node: the node.
        network: the network, for the quantizations and shapes of its tensors.
        values: the node's inputs, `(examples, height, width, channels)`.

    Returns:
        The node's output, `(examples, height, width, channels)`.
    """
    raise NotImplementedError(f"{type(node).__name__} is no node of a quantized network")


@compute_node.register
def _(node: Convolution, network: Network, values: Sequence[np.ndarray]) -> np.ndarray:
    if node.output not in network.quantizations:
        return _floats().convolution(node, network, values[0])
    source, target = _quantizations(node, network)
    centered = values[0].astype(np.float64) - source[0].zero_point
    sums = np.zeros((len(centered), *network.shapes[node.output]))
    height, width = sums.shape[1:3]
    padded = _padded(centered, node.padding, 0)
    for y, x in np.ndindex(*node.weights.shape[:2]):
        seen = _tap(padded, y * node.dilation[0], x * node.dilation[1], node.strides)[:, :height, :width]
        sums += _grouped_product(seen, node.weights[y, x], node.groups)
    whole = (sums.astype(np.int64) + node.bias).astype(np.int32)
    multipliers = convolution_multipliers(source[0], node.weight_scales, target)
    return _requantize(whole.astype(np.float32) * multipliers, target, *node.bounds)


@compute_node.register
def _(node: Pool, network: Network, values: Sequence[np.ndarray]) -> np.ndarray:
    if node.output not in network.quantizations:
        return _floats().pool(node, network, values[0])
    source, target = _quantizations(node, network)
    height, width = network.shapes[node.output][:2]
    taps = list(np.ndindex(*node.window))
    if node.kind == "max":
        outside = np.iinfo(np.int64).min
        padded = _padded(values[0].astype(np.int64), node.padding, outside)
        parts = [_tap(padded, y, x, node.strides)[:, :height, :width] for y, x in taps]
        maximum = functools.reduce(np.maximum, parts)
        return np.where(maximum == outside, source[0].zero_point, maximum).astype(target.dtype)
    padded = _padded(values[0].astype(np.int64) - source[0].zero_point, node.padding, 0)
    sums = sum(_tap(padded, y, x, node.strides)[:, :height, :width] for y, x in taps)
    counts = pool_counts(node, network.shapes[node.inputs[0]], network.shapes[node.output])
    multipliers = average_multipliers(source[0], counts, target)[:, :, None]
    scaled = np.asarray(sums).astype(np.int32).astype(np.float32) * multipliers
    return _requantize(scaled, target, target.low, target.high)


@compute_node.register
def _(node: Elementwise, network: Network, values: Sequence[np.ndarray]) -> np.ndarray:
    operation = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[node.kind]
    if node.output not in network.quantizations:
        return _clipped(operation(*values), node.low, node.high)
    source, target = _quantizations(node, network)
    first, second = (quantization.dequantize(value) for quantization, value in zip(source, values, strict=True))
    return _requantize(operation(first, second) / np.float32(target.scale), target, *node.bounds)


@compute_node.register
def _(node: Function, network: Network, values: Sequence[np.ndarray]) -> np.ndarray:
    return node.apply(values[0].astype(np.float32, copy=False))


@compute_node.register
def _(node: Table, network: Network, values: Sequence[np.ndarray]) -> np.ndarray:
    source, _ = _quantizations(node, network)
    return node.table[values[0].astype(np.int32) - source[0].low]


@compute_node.register
def _(node: Concatenate, network: Network, values: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(values, axis=node.axis + 1)


@compute_node.register
def _(node: Slice, network: Network, values: Sequence[np.ndarray]) -> np.ndarray:
    return values[0][(slice(None),) * (node.axis + 1) + (slice(node.start, node.stop),)]


@compute_node.register
def _(node: Reshape, network: Network, values: Sequence[np.ndarray]) -> np.ndarray:
    return values[0].reshape(len(values[0]), *network.shapes[node.output])


@compute_node.register
def _(node: HostStep, network: Network, values: Sequence[np.ndarray]) -> np.ndarray:
    from anytpu.chip.network import finiteness, operations  # loads JAX

    known = [network.quantizations.get(name) for name in node.inputs]
    reals = [
        value if quantization is None else quantization.dequantize(value)
        for quantization, value in zip(known, values, strict=True)
    ]
    result = operations.compute(node, reals)
    if not network.quantizations:
        return result
    target = network.quantizations.get(node.output)
    finiteness.check_finite(node, reals, result, held=target is not None)
    return result if target is None else target.quantize(result)


def _clipped(x: np.ndarray, low: float | None, high: float | None) -> np.ndarray:
    """Clip floats to the bounds that there are."""
    return x if low is None and high is None else np.clip(x, low, high)


def _floats() -> Any:
    from anytpu.chip.quantized import floats  # loads JAX

    return floats


def _quantizations(node: Node, network: Network) -> tuple[list[Quantization], Quantization]:
    return [network.quantizations[name] for name in node.inputs], network.quantizations[node.output]


def _requantize(scaled: np.ndarray, target: Quantization, low: int, high: int) -> np.ndarray:
    """Round float32 numbers half to even, add the zero point in float64 (exact), and clip."""
    return np.clip(np.rint(scaled).astype(np.float64) + target.zero_point, low, high).astype(target.dtype)


def _padded(x: np.ndarray, padding: Padding, value: int) -> np.ndarray:
    """Pad height and width of `(examples, height, width, channels)` with `value`; negative padding crops."""
    added = [(max(first, 0), max(last, 0)) for first, last in padding]
    cropped = [
        slice(max(-first, 0), size - max(-last, 0)) for (first, last), size in zip(padding, x.shape[1:3], strict=True)
    ]
    return np.pad(x[:, cropped[0], cropped[1]], ((0, 0), *added, (0, 0)), constant_values=value)


def _tap(padded: np.ndarray, y: int, x: int, strides: Pair) -> np.ndarray:
    """Return the inputs of one kernel tap, for all window positions."""
    return padded[:, y :: strides[0], x :: strides[1]]


def _grouped_product(x: np.ndarray, weights: np.ndarray, groups: int) -> np.ndarray:
    """Multiply `(..., channels)` by `(channels / groups, outputs)`, each group of channels by its block of outputs."""
    depth, width = weights.shape
    by_group = np.moveaxis(x.reshape(-1, groups, depth), 1, 0)
    blocks = np.moveaxis(weights.astype(np.float64).reshape(depth, groups, width // groups), 1, 0)
    return np.moveaxis(by_group @ blocks, 0, 1).reshape(*x.shape[:-1], width)
