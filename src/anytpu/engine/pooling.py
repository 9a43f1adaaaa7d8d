"""The gradient of max pooling in a form that XLA's CPU compiler runs fast; the results are the same.

Idea: JAX has one operation for this gradient, `select_and_scatter_add`: each window selects its maximum, and the
gradient of the window is added there. XLA:CPU runs it on one core, with a call for each comparison. Here the selected
tap (element of the window) of each window is computed from slices of the image, one for each tap. Then the axes of the
image are split by the stride. The gradient is a sum of selections, one for each window that covers an element.

Rule: `takes_pool_gradient` decides from shapes alone. As in XLA, the first of several maxima in row-major order is
selected, and padding counts as minus infinity. Measured by benchmarks/kernels.py; see docs/decisions/0004.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

Sizes = tuple[int, ...]

MAX_TAPS = 25
"""Maximum number of elements of a window: of 64, XLA's own form is faster."""


def takes_pool_gradient(gradient: Any, image: Any, parameters: dict[str, Any]) -> bool:
    """Return whether `pool_gradient` supports a gradient and is faster than XLA's own form.

    Args:
        gradient: gradient of the pooled image, or an object with its shape and dtype.
        image: the image, or an object with its shape and dtype.
        parameters: parameters of `jax.lax.select_and_scatter_add_p`.
    """
    is_not_empty = 0 not in (*gradient.shape, *image.shape)
    is_maximum = parameters["select_prim"] is lax.ge_p and image.dtype in (np.float32, np.float64)
    return is_maximum and is_not_empty and math.prod(parameters["window_dimensions"]) <= MAX_TAPS


def pool_gradient(gradient: Array, image: Array, **parameters: Any) -> Array:
    """Compute `jax.lax.select_and_scatter_add_p`: the gradient of an image from that of its windows' maxima.

    Args:
        gradient: gradient of each window's maximum.
        image: the image.
        **parameters: parameters of the primitive, for which `takes_pool_gradient` is true.

    Returns:
        The gradient of the image, in its shape.
    """
    window, strides = parameters["window_dimensions"], parameters["window_strides"]
    # Number of further windows that cover an element along each axis, at most.
    others = tuple(-(-size // step) - 1 for size, step in zip(window, strides, strict=True))
    # 1. The area of all windows, in blocks of one stride. `inwards` pads or crops the image to it.
    blocks = tuple(count + more for count, more in zip(gradient.shape, others, strict=True))
    covered = tuple(count * step for count, step in zip(blocks, strides, strict=True))
    edges = list(zip(image.shape, covered, (low for low, _ in parameters["padding"]), strict=True))
    inwards = [(low, end - size - low, 0) for size, end, low in edges]
    # 2. The tap that each window selects.
    taps = _selected_taps(image, inwards, gradient.shape, window, strides)
    # Computed once: otherwise XLA computes the taps again for each element of the image.
    taps, gradient = lax.optimization_barrier((taps, gradient))
    # 3. Add the contributions. A window spreads its gradient over as many blocks as it covers. The tap -1 matches
    # nothing.
    margins = [(more, more, 0) for more in others]
    taps, gradient = lax.pad(taps, np.int32(-1), margins), lax.pad(gradient, _zero(gradient), margins)
    total: Any = 0
    for back in itertools.product(*(range(more + 1) for more in others)):
        starts = [more - count for more, count in zip(others, back, strict=True)]
        spread = functools.partial(_spread, starts=starts, blocks=blocks, strides=strides)
        total += jnp.where(spread(taps) == _tap_indices(back, window, strides), spread(gradient), 0)
    # 4. Cut the area back to the image.
    outwards = [(-low, size + low - end, 0) for size, end, low in edges]
    return lax.pad(total.reshape(covered), _zero(gradient), outwards)


def _zero(like: Array) -> Array:
    return jnp.zeros((), like.dtype)


def _selected_taps(image: Array, margins: list[Any], counts: Sizes, window: Sizes, strides: Sizes) -> Array:
    """Return the index of the tap that each window selects, int32, in row-major order.

    Args:
        image: the image.
        margins: padding that makes the image the area of all windows; negative values crop.
        counts: number of windows along each axis.
        window: size of a window along each axis.
        strides: stride of the windows along each axis.
    """
    padded = lax.pad(image, jnp.asarray(-jnp.inf, image.dtype), margins)
    best, taps = None, jnp.zeros(counts, jnp.int32)
    for index, tap in enumerate(itertools.product(*map(range, window))):
        ends = [first + (count - 1) * step + 1 for first, count, step in zip(tap, counts, strides, strict=True)]
        candidate = lax.slice(padded, tap, ends, strides)
        best = candidate if best is None else best
        # The negation of XLA's comparison: the first of equal elements stays, and a NaN never stays selected.
        is_better = ~(best >= candidate)
        best, taps = jnp.where(is_better, candidate, best), jnp.where(is_better, np.int32(index), taps)
    return taps


def _tap_indices(back: Sizes, window: Sizes, strides: Sizes) -> np.ndarray:
    """Return the index of the tap that each element is of a window, -2 if the window does not cover the element.

    Args:
        back: number of blocks from the window's first block to the element's, along each axis.
        window: size of a window along each axis.
        strides: stride of the windows, and so size of a block, along each axis.

    Returns:
        An array whose axes are (block, element in the block) for each axis of the image; those of blocks have size 1.
    """
    taps = [np.arange(step) + count * step for count, step in zip(back, strides, strict=True)]
    is_covered, index = np.True_, np.int32(0)
    for axis, (tap, size) in enumerate(zip(taps, window, strict=True)):
        row = np.expand_dims(tap, [other for other in range(2 * len(window)) if other != 2 * axis + 1])
        is_covered, index = is_covered & (row < size), index * size + row
    return np.where(is_covered, index, -2).astype(np.int32)


def _spread(array: Array, starts: list[int], blocks: Sizes, strides: Sizes) -> Array:
    """Repeat each window's value for all elements of a block, along new axes that follow those of the blocks."""
    ends = [start + count for start, count in zip(starts, blocks, strict=True)]
    shape = [size for pair in zip(blocks, strides, strict=True) for size in pair]
    return lax.broadcast_in_dim(lax.slice(array, starts, ends), shape, range(0, len(shape), 2))
