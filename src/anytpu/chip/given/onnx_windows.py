"""Products and pools of a quantized ONNX file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from anytpu.chip.given.onnx_host import host_step
from anytpu.chip.given.onnx_node import FLOAT, QUANTIZE, OnnxNode, Operands, activation
from anytpu.chip.given.values import HeldTensor, Pending, Scaled, Value
from anytpu.chip.graph.nodes import Padding, Pair, Quantization
from anytpu.chip.graph.shapes import Geometry


def _weights(node: OnnxNode, value: Value | None) -> Scaled:
    if not isinstance(value, Scaled):
        kind = "weights without scales" if isinstance(value, np.ndarray) else "an activation as its weights"
        raise node.refused(f"has {kind}, and the chip multiplies activations with weights of 8 bits", QUANTIZE)
    return value


def _scales(node: OnnxNode, weights: Scaled, axis: int) -> np.ndarray:
    """Return the scales of each output channel."""
    if weights.scale.size > 1 and weights.axis != axis:
        raise node.refused("has a scale for each input channel, and the chip has one for each output channel", QUANTIZE)
    return weights.scale


def _bias(node: OnnxNode, value: Value | None, outputs: int, own: Quantization, scales: np.ndarray) -> np.ndarray:
    """Return a bias as integers in steps of input scale * weight scale, or as real numbers.

    An operator of integers has its bias in these steps by definition, as an array of integers.
    """
    if value is None:
        return np.zeros(outputs, np.int64)
    numbers = value.integers if isinstance(value, Scaled) else value
    if isinstance(numbers, np.ndarray) and numbers.size not in (1, outputs if numbers.shape[-1:] == (outputs,) else 1):
        raise node.refused(f"has a bias of {list(numbers.shape)}, and the chip has one for each output channel", FLOAT)
    if isinstance(value, Scaled):
        same = np.allclose(value.scale, np.float64(own.scale) * scales, rtol=1e-3, atol=0)
        return (
            value.integers.astype(np.int64).reshape(-1)
            if same and not value.zero_point.any()
            else value.reals.reshape(-1)
        )
    if not isinstance(value, np.ndarray):
        raise ValueError("a bias is computed from an input")
    return value.reshape(-1)


def conv(node: OnnxNode, operands: Operands) -> Value:
    """Write a convolution."""
    value, weights, bias = (*operands, None)[:3]
    kernel = _weights(node, weights)
    source = node.graph.picture(activation(node, value))
    spatial = kernel.integers.ndim - 2
    if spatial != len(source.dims) - 1:
        raise ValueError(f"{node.layer!r:.100} convolves {list(source.dims)} by {list(kernel.integers.shape)}")
    centered = kernel.centered.transpose(*range(2, 2 + spatial), 1, 0)
    centered = centered if spatial == 2 else centered[None]
    if node.attributes.get("kernel_shape", list(kernel.integers.shape[2:])) != list(kernel.integers.shape[2:]):
        raise ValueError(f"{node.layer!r:.100} has another kernel_shape than its weights")
    groups, scales = node.attributes.get("group", 1), _scales(node, kernel, 0)
    if groups < 1 or centered.shape[2] * groups != source.dims[0] or centered.shape[3] % groups:
        raise ValueError(f"{node.layer!r:.100} has {groups} groups of {list(kernel.integers.shape)}")
    geometry = _geometry(node, source, (centered.shape[0], centered.shape[1]), groups)
    shape = geometry.result(node.graph.shapes[source.tensor], (centered.shape[0], centered.shape[1]), centered.shape[3])
    dims = (shape[2], shape[0], shape[1]) if spatial == 2 else (shape[2], shape[1])
    offsets = _bias(node, bias, shape[2], node.graph.of(source), scales)
    return node.graph.product(source, centered, scales, offsets, geometry, dims, True)


def _geometry(node: OnnxNode, source: HeldTensor, window: Pair, groups: int = 1) -> Geometry:
    """Return the window of a node; `auto_pad` and `ceil_mode` become padding."""
    spatial = len(source.dims) - 1

    def pair(name: str) -> Pair:
        numbers = node.attributes.get(name, [1] * spatial)
        return (1, numbers[0]) if spatial == 1 else (numbers[0], numbers[1])

    strides, dilation, sizes = pair("strides"), pair("dilations"), node.graph.shapes[source.tensor]
    if min(*strides, *dilation, *window) < 1:
        raise ValueError(f"{node.layer!r:.100} has a window of {window} in steps of {strides}")
    pads = list(node.attributes.get("pads", [0] * 2 * spatial))
    low, high = ([0, pads[0]], [0, pads[1]]) if spatial == 1 else (pads[:2], pads[2:])
    auto = node.attributes.get("auto_pad", b"NOTSET").decode()
    for axis in (0, 1):
        reach = (window[axis] - 1) * dilation[axis] + 1
        if auto.startswith("SAME"):
            total = max((-(-sizes[axis] // strides[axis]) - 1) * strides[axis] + reach - sizes[axis], 0)
            low[axis] = total // 2 if auto == "SAME_UPPER" else total - total // 2
            high[axis] = total - low[axis]
        if node.attributes.get("ceil_mode", 0):
            rest = (sizes[axis] + low[axis] + high[axis] - reach) % strides[axis]
            added = strides[axis] - rest if rest else 0
            # A window that starts in the padding after the picture is left out.
            starts = (sizes[axis] + low[axis] + high[axis] + added - reach) // strides[axis] * strides[axis]
            high[axis] += added if starts < sizes[axis] + low[axis] else 0
    padding: Padding = ((low[0], high[0]), (low[1], high[1]))
    return Geometry(strides, dilation, padding, groups)


def matmul(node: OnnxNode, operands: Operands) -> Value:
    """Write a product with a matrix; of two activations, the host computes it."""
    value, weights = operands[:2]
    if isinstance(weights, HeldTensor | Pending):
        return host_step(node, operands)
    kernel = _weights(node, weights)
    if kernel.integers.ndim != 2:
        raise node.refused(f"has weights of {kernel.integers.ndim} axes, and the chip's dense layers have two", FLOAT)
    zeros = np.zeros(kernel.integers.shape[1], np.int64)
    return node.graph.dense(activation(node, value), kernel.centered, _scales(node, kernel, 1), zeros)


def gemm(node: OnnxNode, operands: Operands) -> Value:
    """Write a dense layer with a bias."""
    value, weights, bias = (*operands, None)[:3]
    kernel, held = _weights(node, weights), node.graph.held(activation(node, value))
    factors = node.attributes.get("alpha", 1.0), node.attributes.get("beta", 1.0)
    if factors != (1, 1) or node.attributes.get("transA", 0):
        raise node.refused("has another alpha, beta or transA than 1, 1 and 0", FLOAT)
    if node.attributes.get("transB", 0):
        kernel = kernel.reshaped(kernel.integers.T, 1 - kernel.axis)
    scales = _scales(node, kernel, 1)
    offsets = _bias(node, bias, kernel.integers.shape[1], node.graph.of(held), scales)
    return node.graph.dense(held, kernel.centered, scales, offsets)


def pool(kind: str, whole: bool = False) -> Callable[[OnnxNode, Operands], Value]:
    """Return the function that writes a pool, or one over the whole picture."""

    def write(node: OnnxNode, operands: Operands) -> Value:
        if node.attributes.get("channels_last", 0):
            raise node.refused("has its channels last", FLOAT)
        source = node.graph.picture(activation(node, operands[0]))
        height, width, _ = node.graph.shapes[source.tensor]
        if whole:
            made = node.graph.pool(kind, source, (height, width), Geometry())
            assert isinstance(made, HeldTensor | Pending)
            return made
        sizes = node.attributes["kernel_shape"]
        window = (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])
        geometry = _geometry(node, source, window)
        if geometry.dilation != (1, 1):
            raise node.refused("is a dilated pool, and the chip's windows have no gaps", FLOAT)
        counted = kind == "average" and bool(node.attributes.get("count_include_pad", 0))
        if counted and node.attributes.get("ceil_mode", 0):
            raise node.refused("counts padding beyond the picture (ceil_mode and count_include_pad)", FLOAT)
        return node.graph.pool(kind, source, window, geometry, counted)

    return write


def reduce_mean(node: OnnxNode, operands: Operands) -> Value:
    """Write a mean over all positions as a pool; over other axes, the host computes it."""
    value = node.graph.held(activation(node, operands[0]))
    axes = sorted(axis % (len(value.dims) + 1) for axis in node.numbers("axes", operands, 1) or [0])
    if 0 in axes:
        raise node.refused("works along the batch, and the chip computes each example by itself", FLOAT)
    if len(value.dims) not in (2, 3) or axes != list(range(2, len(value.dims) + 1)):
        return host_step(node, operands)
    made = pool("average", whole=True)(node, [value])
    assert isinstance(made, Pending)
    return made if node.attributes.get("keepdims", 1) == 1 else dataclasses.replace(made, dims=made.dims[:1])
