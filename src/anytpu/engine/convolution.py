"""Convolutions rewritten to the forms that XLA's CPU compiler runs fast; the results are the same.

Idea: XLA:CPU has one fast convolution, for images `(rows, *space, features)` and kernels `(*space, in, out)`. XLA
transposes every other order of axes to that one, but only outside loops: its `ConvCanonicalization` visits the entry
computation alone. Inside a loop the other orders run up to hundreds of times slower, and both gradients of a
convolution have another order. So each convolution is rewritten before XLA sees it, to one of four forms:

1. with the fast order of axes;
2. with one more column of padding, with which XLA's kernel is three times as fast;
3. as one matrix product over all windows (im2col, here "columns");
4. as products of shifted images, if the convolution is depthwise.

Rule: `spelling` chooses the form from shapes alone; `respelled` applies it. Groups of the batch become groups of
features, so one form remains. Measured by benchmarks/kernels.py; see docs/decisions/0004.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

Spelling = Literal["fast order", "padded", "columns of taps", "columns of places", "shifted products"]
"""How a convolution is spelled for XLA: as a convolution with the fast order of axes; as one that is padded by one
more column, which is cut away again; as a matrix product over the windows, with a block of columns for each tap
(element of the kernel) or each place (element of the output); or element by element."""

Sizes = tuple[int, ...]

COLUMN_BYTES = 1 << 24
"""The most memory that columns take at once; larger ones are made and used piece by piece."""

MOST_WINDOWS = 64
"""The most windows that are written out one by one: an 8x8 kernel."""

WIDE_INPUT = 32
"""From this many input features on, XLA:CPU is 1.1 to 3.4 times faster with a convolution that has some padding."""

CACHE_BYTES = 1 << 22
"""A kernel's gradient convolves with the gradients of a whole batch; from this many bytes of them on, likewise (1.3
to 4 times). Everywhere else XLA's own was faster or as fast; see docs/decisions/0004."""


@dataclasses.dataclass(frozen=True)
class Convolution:
    """The shape of one convolution: a forward pass, or either of its gradients.

    Attributes:
        batch: images, or what stands in their place in a gradient.
        groups: groups of features, each with kernels of its own.
        features: input features in one group.
        filters: output features in one group.
        kernel: the size of the kernel along each spatial axis.
        output: the size of the output along each spatial axis.
        strides: the step of the window along each spatial axis.
        padding: (before, after) along each spatial axis; negative values crop.
        spread: the distance between neighbours of the input, 1 when it is dense (the input's own dilation).
        dilation: the distance between neighbours of the kernel, 1 when it is dense.
        dtype: of image and kernel.
    """

    batch: int
    groups: int
    features: int
    filters: int
    kernel: tuple[int, ...]
    output: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    spread: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: np.dtype

    @property
    def taps(self) -> int:
        """The number of elements of one kernel."""
        return math.prod(self.kernel)

    @property
    def places(self) -> int:
        """The number of places of one output image."""
        return math.prod(self.output)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the whole convolution."""
        return 2 * self.batch * self.places * self.taps * self.groups * self.features * self.filters

    @property
    def kernel_bytes(self) -> int:
        """Memory that the kernel takes."""
        return self.taps * self.groups * self.features * self.filters * self.dtype.itemsize

    @property
    def column_bytes(self) -> int:
        """Memory that all windows take, side by side."""
        return self.batch * self.places * self.taps * self.groups * self.features * self.dtype.itemsize


def shape_of(image: Array, kernel: Array, parameters: dict[str, Any]) -> Convolution:
    """Return the shape of the convolution of operands in the fast order, `(batch, *spatial, features)`."""
    spread, dilation = parameters["lhs_dilation"], parameters["rhs_dilation"]
    strides, padding = parameters["window_strides"], parameters["padding"]
    groups = parameters["feature_group_count"] * parameters["batch_group_count"]
    sizes = zip(image.shape[1:-1], kernel.shape[:-2], spread, dilation, strides, padding, strict=True)
    output = tuple(((n - 1) * s + 1 + sum(p) - ((k - 1) * d + 1)) // step + 1 for n, k, s, d, step, p in sizes)
    return Convolution(
        batch=image.shape[0],
        groups=groups,
        features=kernel.shape[-2],
        filters=kernel.shape[-1] // groups,
        kernel=kernel.shape[:-2],
        output=output,
        strides=tuple(strides),
        padding=tuple(padding),
        spread=tuple(spread),
        dilation=tuple(dilation),
        dtype=np.dtype(image.dtype),
    )


def spelling(shape: Convolution) -> Spelling:
    """Decide how a convolution is spelled for XLA's CPU compiler."""
    if min(shape.taps, shape.places) > MOST_WINDOWS:
        return "fast order"
    if is_elementwise(shape):
        return "shifted products"
    if is_faster_as_matmuls(shape):
        return "columns of places" if _is_over_places(shape) else "columns of taps"
    return "padded" if is_faster_padded(shape) else "fast order"


def is_elementwise(shape: Convolution) -> bool:
    """Say whether no two features meet: the depthwise convolution and its two gradients."""
    others = shape.batch if _is_over_places(shape) else shape.features
    return shape.groups > 1 and shape.filters == 1 and others == 1


def is_faster_as_matmuls(shape: Convolution) -> bool:
    """Say whether one matrix product over the windows is faster than XLA's own convolution on a CPU.

    Example:
        >>> one, none = (1, 1), ((0, 0), (0, 0))
        >>> pointwise = Convolution(64, 1, 64, 64, one, (8, 8), one, none, one, one, np.dtype("float32"))
        >>> is_faster_as_matmuls(pointwise)
        True
    """
    if shape.groups > 1 or shape.dtype not in (np.float32, np.float64):
        return False
    if shape.dtype == np.float64 or min(shape.taps, shape.places) == 1:  # XLA:CPU has no fast float64 convolution.
        return True
    return _is_over_places(shape) and shape.kernel_bytes >= CACHE_BYTES


def is_faster_padded(shape: Convolution) -> bool:
    """Say whether a convolution has no padding, and is faster with some."""
    bare = not any(map(any, shape.padding)) and math.prod(shape.spread) == 1 and math.prod(shape.dilation) == 1
    return bare and shape.groups == 1 and shape.dtype == np.float32 and shape.features >= WIDE_INPUT


def respelled(image: Array, kernel: Array, how: Spelling | None = None, **parameters: Any) -> Array:
    """Compute what `jax.lax.conv_general_dilated_p` computes with these parameters, spelled for the CPU.

    Args:
        image: the left operand, axes as `parameters["dimension_numbers"].lhs_spec` says.
        kernel: the right operand.
        how: the spelling; None lets `spelling` decide.
        **parameters: those of the primitive.

    Returns:
        The convolution, axes as `out_spec` says.
    """
    image, kernel = _in_fast_order(image, kernel, parameters)
    shape = shape_of(image, kernel, parameters)
    result = SPELLINGS[how or spelling(shape)](image, kernel, shape, parameters["precision"])
    return jnp.transpose(result, _inverse(_image_axes(parameters["dimension_numbers"].out_spec)))


def is_to_be_respelled(image: Any, kernel: Any, parameters: dict[str, Any]) -> bool:
    """Say whether a convolution gains from `respelled`: False for what is in the fast order already and belongs there.

    Args:
        image: the left operand, or anything with its shape and dtype.
        kernel: the right operand, likewise.
        parameters: those of the primitive.
    """
    if not jnp.issubdtype(image.dtype, jnp.floating) or 0 in (*image.shape, *kernel.shape):
        return False
    if parameters["preferred_element_type"] not in (None, image.dtype):
        return False
    if not _lies_in_fast_order(parameters):
        return True
    shape = shape_of(image, kernel, parameters)
    return spelling(shape) != "fast order" and shape.places > 0


def _inverse(axes: Sizes) -> Sizes:
    return tuple(axes.index(axis) for axis in range(len(axes)))


def _lies_in_fast_order(parameters: dict[str, Any]) -> bool:
    image, kernel, out = parameters["dimension_numbers"]
    plain = list(range(len(image)))
    axes = [list(_image_axes(image)), list(_kernel_axes(kernel)), list(_image_axes(out))]
    return parameters["batch_group_count"] == 1 and axes == [plain] * 3


def _image_axes(spec: tuple[int, ...]) -> tuple[int, ...]:
    """Return (batch, feature, *spatial) as (batch, *spatial, feature)."""
    return (spec[0], *spec[2:], spec[1])


def _kernel_axes(spec: tuple[int, ...]) -> tuple[int, ...]:
    """Return (out, in, *spatial) as (*spatial, in, out)."""
    return (*spec[2:], spec[1], spec[0])


def _in_fast_order(image: Array, kernel: Array, parameters: dict[str, Any]) -> tuple[Array, Array]:
    """Transpose both operands, and turn groups of the batch into groups of features."""
    numbers, groups = parameters["dimension_numbers"], parameters["batch_group_count"]
    image = jnp.transpose(image, _image_axes(numbers.lhs_spec))
    if groups > 1:
        image = jnp.moveaxis(image.reshape(groups, -1, *image.shape[1:]), 0, -2)
        image = image.reshape(*image.shape[:-2], -1)
    return image, jnp.transpose(kernel, _kernel_axes(numbers.rhs_spec))


def _convolution(image: Array, kernel: Array, shape: Convolution, precision: Any) -> Array:
    """Leave it to XLA."""
    plain = tuple(range(image.ndim))
    order = lax.ConvDimensionNumbers(
        (0, plain[-1], *plain[1:-1]), (plain[-1], plain[-2], *plain[:-2]), (0, plain[-1], *plain[1:-1])
    )
    return lax.conv_general_dilated(
        image,
        kernel,
        window_strides=shape.strides,
        padding=shape.padding,
        lhs_dilation=shape.spread,
        rhs_dilation=shape.dilation,
        dimension_numbers=order,
        feature_group_count=shape.groups,
        precision=precision,
    )


def _padded(image: Array, kernel: Array, shape: Convolution, precision: Any) -> Array:
    """Leave it to XLA with one more column of zeros, and cut away what comes of that."""
    *others, (before, after) = shape.padding
    more = dataclasses.replace(shape, padding=(*others, (before, after + 1)))
    return _convolution(image, kernel, more, precision)[..., : shape.output[-1], :]


def _columns_of_taps(image: Array, kernel: Array, shape: Convolution, precision: Any) -> Array:
    """One matrix product: (all places, taps x features) by (taps x features, filters); some images at a time."""
    flat = kernel.reshape(-1, shape.filters)

    def product(images: Array) -> Array:
        columns = jnp.concatenate(_tap_windows(images, shape), axis=-1)
        return jnp.dot(columns.reshape(-1, flat.shape[0]), flat, precision=precision)

    pieces = _pieces(shape, shape.batch)
    result = product(image) if pieces == 1 else lax.map(product, image.reshape(pieces, -1, *image.shape[1:]))
    return result.reshape(shape.batch, *shape.output, -1)


def _columns_of_places(image: Array, kernel: Array, shape: Convolution, precision: Any) -> Array:
    """One matrix product: (all places, features x taps) by (features x taps, filters); some features at a time."""
    # Features first: they are the images of the pass whose gradient this is, and lie apart in memory.
    image, kernel = jnp.moveaxis(image, -1, 1), jnp.moveaxis(kernel, -2, 0)
    pieces = _pieces(shape, shape.features)
    some = shape.features // pieces

    def add(i: Any, total: Array) -> Array:
        images, kernels = (lax.dynamic_slice_in_dim(one, i * some, some, at) for one, at in ((image, 1), (kernel, 0)))
        columns = jnp.concatenate(_place_windows(images, 2, shape), axis=0)
        flat = kernels.reshape(-1, shape.filters)
        return total + jnp.dot(columns.reshape(-1, flat.shape[0]), flat, precision=precision)

    zero = jnp.zeros((shape.places * shape.batch, shape.filters), image.dtype)
    result = add(0, zero) if pieces == 1 else lax.fori_loop(0, pieces, add, zero)
    return jnp.moveaxis(result.reshape(*shape.output, shape.batch, -1), -2, 0)


def _shifted_products(image: Array, kernel: Array, shape: Convolution, precision: Any) -> Array:
    """Element by element: a sum over shifted images, or for the kernel's gradient a sum over each shifted image."""
    del precision  # nothing is left to XLA's matrix product
    if not _is_over_places(shape):
        products = zip(_tap_windows(image, shape), kernel.reshape(-1, shape.groups), strict=True)
        return functools.reduce(jnp.add, [window * tap for window, tap in products])
    image = image[0].reshape(*image.shape[1:-1], shape.groups, shape.features)
    windows = _place_windows(image, 0, shape)
    sums = [jnp.einsum("...gf,...fg->g", window, kernel) for window in windows]
    return jnp.stack(sums).reshape(1, *shape.output, shape.groups)


SPELLINGS: dict[Spelling, Callable[[Array, Array, Convolution, Any], Array]] = {
    "fast order": _convolution,
    "padded": _padded,
    "columns of taps": _columns_of_taps,
    "columns of places": _columns_of_places,
    "shifted products": _shifted_products,
}


def _is_over_places(shape: Convolution) -> bool:
    """Say whether the output has fewer places than the kernel has taps: so it is in a kernel's gradient."""
    return shape.places < shape.taps


def _pieces(shape: Convolution, among: int) -> int:
    """Return into how many equal pieces `among` things are cut so that the columns of a piece are not too large."""
    return next(
        n for n in range(1, among + 1) if among % n == 0 and (shape.column_bytes <= n * COLUMN_BYTES or n == among)
    )


def _tap_windows(image: Array, shape: Convolution) -> list[Array]:
    """Return for each tap of the kernel what it meets, `(batch, *output, features)`."""
    return _windows(image, 1, shape, (shape.kernel, shape.dilation), (shape.output, shape.strides))


def _place_windows(image: Array, first: int, shape: Convolution) -> list[Array]:
    """Return for each place of the output what the kernel meets there; the axes of space begin at `first`."""
    return _windows(image, first, shape, (shape.output, shape.strides), (shape.kernel, shape.dilation))


def _windows(
    image: Array, first: int, shape: Convolution, starts: tuple[Sizes, Sizes], spans: tuple[Sizes, Sizes]
) -> list[Array]:
    """Cut windows out of an image, one for each start.

    Args:
        image: its axes of space begin at `first`.
        first: see there.
        shape: gives padding and spread of the image.
        starts: how many windows begin along each axis of space, and how far apart.
        spans: how many elements a window has along each axis of space, and how far apart.
    """
    space = range(first, first + len(shape.kernel))
    borders = [(0, 0, 0)] * image.ndim
    for axis, (before, after), spread in zip(space, shape.padding, shape.spread, strict=True):
        borders[axis] = before, after, spread - 1
    image = lax.pad(image, jnp.zeros((), image.dtype), borders)
    cuts = []
    for position in itertools.product(*map(range, starts[0])):
        cut = [slice(None)] * image.ndim
        for axis, at, apart, size, step in zip(space, position, starts[1], *spans, strict=True):
            cut[axis] = slice(at * apart, at * apart + (size - 1) * step + 1, step)
        cuts.append(image[tuple(cut)])
    return cuts
