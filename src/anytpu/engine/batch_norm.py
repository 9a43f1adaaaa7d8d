"""Batch normalization whose sums over rows are computed by the foreign kernels, at the functions that Keras calls.

Idea: XLA reads a large array from memory many times for its mean, its variance and the two sums of the gradient. Here
each pair of sums is one call, which reads each operand once. All elementwise operations stay JAX's, so XLA fuses them
with activations, additions and masks.

Rule: float32, with the channels as the last axis and statistics over all others, from `MIN_NUMBERS` numbers. Everything
else raises NotImplementedError, and Keras uses its own functions. Each replica has its own statistics under `vmap`.
Derivatives of every order and mode are those of the formulas.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from anytpu.engine.foreign import foreign_kernels

MIN_NUMBERS = 2**15
"""Minimum size of an array: below it a call costs as much as it saves."""


def moments(x: Array, axes: Any, keepdims: bool = False, synchronized: bool = False) -> tuple[Array, Array]:
    """Return mean and variance. This is the function that Keras calls as `backend.nn.moments`.

    Args:
        x: the array, `(..., channels)`.
        axes: must be all axes but the last.
        keepdims: whether the reduced axes stay, with size 1.
        synchronized: must be False.

    Returns:
        Two arrays `(channels,)`; with `keepdims`, the reduced axes precede, with size 1.

    Raises:
        NotImplementedError: the case is not supported; Keras then uses its own implementation.
    """
    x = jnp.asarray(x)
    if synchronized or not _fits(x) or sorted(axis % x.ndim for axis in axes) != list(range(x.ndim - 1)):
        raise NotImplementedError
    mean, variance = _moments(x)
    kept = (1,) * (x.ndim - 1) + x.shape[-1:]
    return (mean.reshape(kept), variance.reshape(kept)) if keepdims else (mean, variance)


def normalize(
    x: Array,
    mean: Array,
    variance: Array,
    axis: int,
    offset: Array | None = None,
    scale: Array | None = None,
    epsilon: float = 1e-3,
) -> Array:
    """Normalize an array. This is the function that Keras calls as `backend.nn.batch_normalization`.

    Args:
        x: the array, `(..., channels)`.
        mean: `(channels,)`.
        variance: `(channels,)`.
        axis: must be the last axis.
        offset: `(channels,)`; None for 0.
        scale: `(channels,)`; None for 1.
        epsilon: added to the variance.

    Raises:
        NotImplementedError: the case is not supported; Keras then uses its own implementation.
    """
    x = jnp.asarray(x)
    if not _fits(x) or axis % x.ndim != x.ndim - 1:
        raise NotImplementedError
    absent = {"scale": jnp.ones, "offset": jnp.zeros}
    vectors = {"mean": mean, "variance": variance, "scale": scale, "offset": offset}
    arrays = {
        name: absent[name](x.shape[-1:], x.dtype) if vector is None else jnp.asarray(vector)
        for name, vector in vectors.items()
    }
    if any(array.shape != x.shape[-1:] or array.dtype != x.dtype for array in arrays.values()):
        raise NotImplementedError
    factor = lax.rsqrt(arrays["variance"] + epsilon) * arrays["scale"]
    return _affine(x, arrays["mean"], factor, arrays["offset"])


def _fits(x: Array) -> bool:
    is_large = x.size >= MIN_NUMBERS and x.ndim > 1
    return is_large and x.dtype == jnp.float32 and foreign_kernels() is not None


@jax.custom_jvp
def _moments(x: Array) -> tuple[Array, Array]:
    """Return mean and variance of each channel."""
    mean, variance = _kernels().column_moments(_rows(x))
    return mean, variance


@_moments.defjvp
def _differentiate_moments(primals: Any, tangents: Any) -> Any:
    (x,), (slope,) = primals, tangents
    mean, variance = _moments(x)
    axes = range(x.ndim - 1)
    # The variance does not depend on the mean to first order, because the deviations sum to zero.
    return (mean, variance), (jnp.mean(slope, axes), 2 * jnp.mean((x - mean) * slope, axes))


@jax.custom_jvp
def _affine(x: Array, mean: Array, factor: Array, offset: Array) -> Array:
    """Return `(x - mean) * factor + offset`, as Keras computes it."""
    return x * factor + (offset - mean * factor)


@_affine.defjvp
def _differentiate_affine(primals: Any, tangents: Any) -> Any:
    (x, mean, factor, _), (slope, mean_slope, factor_slope, offset_slope) = primals, tangents
    # The part that is linear in the tangents of the vectors is one primitive, so its transpose is one kernel call.
    spread = spread_p.bind(x, mean, factor_slope, offset_slope - factor * mean_slope)
    return _affine(*primals), slope * factor + spread


@jax.custom_jvp
def _products(gradient: Array, x: Array, mean: Array) -> tuple[Array, Array]:
    """Return the sums of `gradient` and of `gradient * (x - mean)` over the rows."""
    sums, products = _kernels().column_products(_rows(gradient), _rows(x), mean)
    return sums, products


@_products.defjvp
def _differentiate_products(primals: Any, tangents: Any) -> Any:
    def plain(gradient: Array, x: Array, mean: Array) -> tuple[Array, Array]:
        axes = range(x.ndim - 1)
        return jnp.sum(gradient, axes), jnp.sum(gradient * (x - mean), axes)

    return _products(*primals), jax.jvp(plain, primals, tangents)[1]


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def _kernels() -> Any:
    kernels = foreign_kernels()
    assert kernels is not None, "_fits was true, and kernels are not removed while a process runs"
    return kernels


def _spread(x: Array, mean: Array, factor: Array, offset: Array) -> Array:
    return (x - mean) * factor + offset


def _transpose_spread(gradient: Any, x: Array, mean: Array, factor: Any, offset: Any) -> list[Any]:
    if type(gradient) is ad.Zero:
        return [None, None, ad.Zero(factor.aval), ad.Zero(offset.aval)]
    sums, products = _products(gradient, x, mean)
    return [None, None, products, sums]


def _differentiate_spread(primals: Any, tangents: Any) -> Any:
    return jax.jvp(_spread, primals, tuple(map(ad.instantiate_zeros, tangents)))


spread_p = Primitive("spread")
"""`(x - mean) * factor + offset`, linear in factor and offset. Its transpose is one call, not two reductions of XLA."""

spread_p.def_impl(_spread)
spread_p.def_abstract_eval(lambda x, *vectors: ShapedArray(x.shape, x.dtype))
mlir.register_lowering(spread_p, mlir.lower_fun(_spread, multiple_results=False))
ad.primitive_jvps[spread_p] = _differentiate_spread
ad.primitive_transposes[spread_p] = _transpose_spread
batching.primitive_batchers[spread_p] = lambda operands, dims: (jax.vmap(_spread, dims)(*operands), 0)
