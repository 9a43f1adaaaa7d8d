"""Products and pools of a network in float32, by XLA.

Idea: each geometry of a product or a pool has one compiled XLA kernel, which all nodes of that geometry share.

Rule: kernels are kept with their network, and freed with it: each is a megabyte of code for every shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.chip.graph.nodes import Convolution, Network, Pool
from anytpu.program.remembered import Remembered

_NUMBERS = ("NHWC", "HWIO", "NHWC")
_KERNELS: Remembered[dict[tuple, Callable[..., Any]]] = Remembered()


def convolution(node: Convolution, network: Network, x: np.ndarray) -> np.ndarray:
    """Return the output of a convolution, `(batch, height, width, channels)`."""
    kernel = _kernel(network, _convolution, node.strides, node.padding, node.dilation, node.groups)
    made = np.asarray(kernel(x.astype(np.float32, copy=False), node.weights, node.bias))
    return made if node.low is None and node.high is None else np.clip(made, node.low, node.high)


def pool(node: Pool, network: Network, x: np.ndarray) -> np.ndarray:
    """Return the output of a pool, `(batch, height, width, channels)`."""
    kernel = _kernel(network, _pool, node.kind, node.window, node.strides, node.padding, node.counts_padding)
    return np.asarray(kernel(x.astype(np.float32, copy=False)))


def _kernel(network: Network, make: Callable[..., Callable[..., Any]], *geometry: Any) -> Callable[..., Any]:
    """Return the compiled kernel of a geometry; `make` returns its function if there is no kernel yet."""
    kernels = _KERNELS.get(network) or _KERNELS.keep(network, {})
    key = (make, *geometry)
    if key not in kernels:
        kernels[key] = jax.jit(make(*geometry))
    return kernels[key]


def _convolution(strides: Any, padding: Any, dilation: Any, groups: int) -> Callable[..., Any]:
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


def _pool(kind: str, window: Any, strides: Any, padding: Any, counts_padding: bool) -> Callable[..., Any]:
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
