"""`evaluate`: a network in float32, as calibration runs it.

Idea: nodes are evaluated one by one, so that each tensor can be observed. Each geometry of a product or a pool has one
compiled XLA kernel, which all nodes of that geometry share.

Rule: kernels are kept with their network, and freed with it: each is a megabyte of code for every shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.chip.network import operations
from anytpu.chip.network.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    Function,
    HostStep,
    Network,
    Node,
    Pool,
    Reshape,
    Shape,
    Slice,
)
from anytpu.chip.network.shapes import canonical
from anytpu.program.remembered import Remembered

_NUMBERS = ("NHWC", "HWIO", "NHWC")
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}


class KernelCache:
    """The compiled kernels of one network, by geometry."""

    def __init__(self) -> None:
        self._made: dict[tuple, Callable[..., Any]] = {}

    def of(self, make: Callable[..., Callable[..., Any]], *geometry: Any) -> Callable[..., Any]:
        """Return the kernel of a geometry; `make` returns its function if there is no kernel yet."""
        key = (make, *geometry)
        if key not in self._made:
            self._made[key] = jax.jit(make(*geometry))
        return self._made[key]


_KERNELS: Remembered[KernelCache] = Remembered()


def evaluate(network: Network, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return every tensor of a network.

    Args:
        network: the network.
        inputs: the user's arrays, in the order of its inputs, `(batch, *shape)` each, of any one batch.

    Returns:
        By name, the inputs included: `(batch, height, width, channels)`, float32 except for integers and booleans.

    Example:
        >>> evaluate(network, [np.zeros((3, 4), np.float32)])[network.outputs[0].tensor].shape
        (3, 1, 1, 2)
    """
    tensors: dict[str, np.ndarray] = {}
    kernels = _KERNELS.get(network) or _KERNELS.keep(network, KernelCache())
    for port, values in zip(network.inputs, inputs, strict=True):
        array = canonical(np.asarray(values), port.shape)
        tensors[port.tensor] = array if np.dtype(port.dtype).kind in "iub" else array.astype(np.float32, copy=False)
    for node in network.nodes:
        values = [tensors[name] for name in node.inputs]
        tensors[node.output] = np.asarray(_RULES[type(node)](node, values, network.shapes[node.output], kernels))
    return tensors


def _convolution(node: Convolution, inputs: list[np.ndarray], _: Shape, kernels: KernelCache) -> Any:
    kernel = kernels.of(_convolution_kernel, node.strides, node.padding, node.dilation, node.groups)
    return _clipped(kernel(inputs[0].astype(np.float32, copy=False), node.weights, node.bias), node.low, node.high)


def _convolution_kernel(strides: Any, padding: Any, dilation: Any, groups: int) -> Callable[..., Any]:
    def kernel(x: jax.Array, weights: jax.Array, bias: jax.Array) -> jax.Array:
        made = jax.lax.conv_general_dilated(
            x,
            weights,
            window_strides=strides,
            padding=padding,
            rhs_dilation=dilation,
            dimension_numbers=_NUMBERS,
            feature_group_count=groups,
            precision=jax.lax.Precision.HIGHEST,
        )
        return made + bias

    return kernel


def _pool(node: Pool, inputs: list[np.ndarray], _: Shape, kernels: KernelCache) -> Any:
    kernel = kernels.of(_pool_kernel, node.kind, node.window, node.strides, node.padding, node.counts_padding)
    return kernel(inputs[0].astype(np.float32, copy=False))


def _pool_kernel(kind: str, window: Any, strides: Any, padding: Any, counts_padding: bool) -> Callable[..., Any]:
    def pooled(x: jax.Array, start: float, function: Any) -> jax.Array:
        around = ((0, 0), *padding, (0, 0))
        return jax.lax.reduce_window(x, start, function, (1, *window, 1), (1, *strides, 1), around)

    def kernel(x: jax.Array) -> jax.Array:
        if kind == "max":
            return pooled(x, -jnp.inf, jax.lax.max)
        total = pooled(x, 0.0, jax.lax.add)
        whole = counts_padding or not any(map(any, padding))
        return total / (window[0] * window[1] if whole else pooled(jnp.ones_like(x[:1, ..., :1]), 0.0, jax.lax.add))

    return kernel


def _elementwise(node: Elementwise, inputs: list[np.ndarray], *_: Any) -> Any:
    return _clipped(_OPERATIONS[node.kind](*inputs), node.low, node.high)


def _clipped(x: Any, low: float | None, high: float | None) -> np.ndarray:
    array = np.asarray(x)
    return array if low is None and high is None else np.clip(array, low, high)


def _function(node: Function, inputs: list[np.ndarray], *_: Any) -> np.ndarray:
    return node.apply(inputs[0].astype(np.float32, copy=False))


def _slice(node: Slice, inputs: list[np.ndarray], *_: Any) -> np.ndarray:
    return inputs[0][(slice(None),) * (node.axis + 1) + (slice(node.start, node.stop),)]


_RULES: dict[type[Node], Callable[..., Any]] = {
    Convolution: _convolution,
    Pool: _pool,
    Elementwise: _elementwise,
    Function: _function,
    Concatenate: lambda node, inputs, *_: np.concatenate(inputs, node.axis + 1),
    Slice: _slice,
    Reshape: lambda _node, inputs, shape, _kernels: inputs[0].reshape(-1, *shape),
    HostStep: lambda node, inputs, *_: operations.compute(node, inputs),
}
