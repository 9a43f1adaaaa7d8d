"""Convolutions rewritten to the forms that XLA's CPU compiler runs fast; the results are the same.

Idea: XLA:CPU has one fast convolution, for images `(rows, *space, features)` and kernels `(*space, in, out)`. XLA
transposes every other order of axes to that one, but only outside loops: its `ConvCanonicalization` visits the entry
computation alone. Inside a loop the other orders run up to hundreds of times slower, and both gradients of a
convolution have another order. So each convolution is rewritten before XLA sees it, to one of five forms:

- "channels last": the fast order of axes;
- "padded": the same with one more column of padding, with which XLA's kernel is three times as fast;
- "im2col": a matrix product over all windows, with a block of columns for each tap (element of the kernel);
- "im2col by position": the same with a block of columns for each position of the output, for a kernel's gradient;
- "shifted products": sums of products of shifted images, for a depthwise convolution.

Rule: `choose_form` decides from shapes alone; `rewrite_convolution` applies the form. Groups of the batch become groups
of features, so one kind of groups remains. Measured by benchmarks/kernels.py; see docs/decisions/0004.
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

ConvolutionForm = Literal["channels last", "padded", "im2col", "im2col by position", "shifted products"]

Sizes = tuple[int, ...]

MAX_COLUMN_BYTES = 1 << 24
"""Maximum bytes of the columns of an im2col; larger columns are computed and used piece by piece."""

MAX_WINDOWS = 64
"""Maximum number of windows that are written out separately: an 8x8 kernel."""

MIN_PADDED_FEATURES = 32
"""From this many input features on, XLA:CPU is 1.1 to 3.4 times faster with a convolution that has some padding."""

MIN_MATMUL_KERNEL_BYTES = 1 << 22
"""Minimum bytes of the second operand from which a kernel's gradient is faster as a product (1.3 to 4 times). That
operand is the gradient of a whole batch. Everywhere else XLA's own was faster or as fast; see docs/decisions/0004."""


@dataclasses.dataclass(frozen=True)
class ConvolutionShape:
    """The shape of one convolution: a forward pass, or either of its gradients.

    Attributes:
        batch: number of images; in a kernel's gradient, number of input features.
        groups: number of groups of features, each with its own kernels.
        features: number of input features in one group.
        filters: number of output features in one group.
        kernel: size of the kernel along each spatial axis.
        output: size of the output along each spatial axis.
        strides: stride of the window along each spatial axis.
        padding: (before, after) along each spatial axis; negative values crop.
        image_dilation: dilation of the image along each spatial axis, 1 for none.
        kernel_dilation: dilation of the kernel along each spatial axis, 1 for none.
        dtype: dtype of image and kernel.
    """

    batch: int
    groups: int
    features: int
    filters: int
    kernel: tuple[int, ...]
    output: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    image_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    dtype: np.dtype

    @property
    def taps(self) -> int:
        """Number of elements of one kernel."""
        return math.prod(self.kernel)

    @property
    def positions(self) -> int:
        """Number of positions in one output image."""
        return math.prod(self.output)

    @property
    def kernel_bytes(self) -> int:
        """Size of the kernel in bytes."""
        return self.taps * self.groups * self.features * self.filters * self.dtype.itemsize

    @property
    def column_bytes(self) -> int:
        """Size in bytes of the columns of all windows."""
        return self.batch * self.positions * self.taps * self.groups * self.features * self.dtype.itemsize


def shape_of(image: Array, kernel: Array, parameters: dict[str, Any]) -> ConvolutionShape:
    """Return the shape of a convolution whose operands have the fast order of axes, `(batch, *spatial, features)`."""
    image_dilation, kernel_dilation = parameters["lhs_dilation"], parameters["rhs_dilation"]
    strides, padding = parameters["window_strides"], parameters["padding"]
    groups = parameters["feature_group_count"] * parameters["batch_group_count"]
    sizes = zip(image.shape[1:-1], kernel.shape[:-2], image_dilation, kernel_dilation, strides, padding, strict=True)
    output = tuple(
        ((size - 1) * dilation + 1 + sum(pad) - ((window - 1) * window_dilation + 1)) // stride + 1
        for size, window, dilation, window_dilation, stride, pad in sizes
    )
    return ConvolutionShape(
        batch=image.shape[0],
        groups=groups,
        features=kernel.shape[-2],
        filters=kernel.shape[-1] // groups,
        kernel=kernel.shape[:-2],
        output=output,
        strides=tuple(strides),
        padding=tuple(padding),
        image_dilation=tuple(image_dilation),
        kernel_dilation=tuple(kernel_dilation),
        dtype=np.dtype(image.dtype),
    )


def choose_form(shape: ConvolutionShape) -> ConvolutionForm:
    """Return the form of a convolution for XLA's CPU compiler."""
    if min(shape.taps, shape.positions) > MAX_WINDOWS:
        return "channels last"
    if is_depthwise(shape):
        return "shifted products"
    if is_faster_as_matmuls(shape):
        return "im2col by position" if _is_over_positions(shape) else "im2col"
    return "padded" if is_faster_padded(shape) else "channels last"


def is_depthwise(shape: ConvolutionShape) -> bool:
    """Return whether a convolution is depthwise, or a gradient of one: no sum is over features."""
    others = shape.batch if _is_over_positions(shape) else shape.features
    return shape.groups > 1 and shape.filters == 1 and others == 1


def is_faster_as_matmuls(shape: ConvolutionShape) -> bool:
    """Return whether a matrix product over the windows is faster than XLA's own convolution on a CPU.

    Example:
        >>> unit, unpadded = (1, 1), ((0, 0), (0, 0))
        >>> pointwise = ConvolutionShape(64, 1, 64, 64, unit, (8, 8), unit, unpadded, unit, unit, np.dtype("float32"))
        >>> is_faster_as_matmuls(pointwise)
        True
    """
    if shape.groups > 1 or shape.dtype not in (np.float32, np.float64):
        return False
    if shape.dtype == np.float64 or min(shape.taps, shape.positions) == 1:  # XLA:CPU has no fast float64 convolution.
        return True
    return _is_over_positions(shape) and shape.kernel_bytes >= MIN_MATMUL_KERNEL_BYTES


def is_faster_padded(shape: ConvolutionShape) -> bool:
    """Return whether a convolution has no padding, and is faster with some."""
    is_dense = math.prod(shape.image_dilation) == math.prod(shape.kernel_dilation) == 1
    return (
        not any(map(any, shape.padding))
        and is_dense
        and shape.groups == 1
        and shape.dtype == np.float32
        and shape.features >= MIN_PADDED_FEATURES
    )


def rewrite_convolution(image: Array, kernel: Array, form: ConvolutionForm | None = None, **parameters: Any) -> Array:
    """Compute `jax.lax.conv_general_dilated_p` in a form for the CPU.

    Args:
        image: the left operand, with the axes of `parameters["dimension_numbers"].lhs_spec`.
        kernel: the right operand, with the axes of `rhs_spec`.
        form: the form; None: that of `choose_form`.
        **parameters: parameters of the primitive.

    Returns:
        The convolution, with the axes of `out_spec`.
    """
    image, kernel = _channels_last(image, kernel, parameters)
    shape = shape_of(image, kernel, parameters)
    result = FORMS[form or choose_form(shape)](image, kernel, shape, parameters["precision"])
    return jnp.transpose(result, _inverse(_image_axes(parameters["dimension_numbers"].out_spec)))


def needs_rewriting(image: Any, kernel: Any, parameters: dict[str, Any]) -> bool:
    """Return whether a convolution is faster in another form than it has.

    Args:
        image: the left operand, or an object with its shape and dtype.
        kernel: the right operand, or an object with its shape and dtype.
        parameters: parameters of `jax.lax.conv_general_dilated_p`.
    """
    if not jnp.issubdtype(image.dtype, jnp.floating) or 0 in (*image.shape, *kernel.shape):
        return False
    if parameters["preferred_element_type"] not in (None, image.dtype):
        return False
    if not _is_channels_last(parameters):
        return True
    shape = shape_of(image, kernel, parameters)
    return choose_form(shape) != "channels last" and shape.positions > 0


def _inverse(axes: Sizes) -> Sizes:
    return tuple(axes.index(axis) for axis in range(len(axes)))


def _is_channels_last(parameters: dict[str, Any]) -> bool:
    image, kernel, out = parameters["dimension_numbers"]
    plain = list(range(len(image)))
    axes = [list(_image_axes(image)), list(_kernel_axes(kernel)), list(_image_axes(out))]
    return parameters["batch_group_count"] == 1 and axes == [plain] * 3


def _image_axes(spec: tuple[int, ...]) -> tuple[int, ...]:
    """Return axes (batch, feature, *spatial) in the order (batch, *spatial, feature)."""
    return (spec[0], *spec[2:], spec[1])


def _kernel_axes(spec: tuple[int, ...]) -> tuple[int, ...]:
    """Return axes (out, in, *spatial) in the order (*spatial, in, out)."""
    return (*spec[2:], spec[1], spec[0])


def _channels_last(image: Array, kernel: Array, parameters: dict[str, Any]) -> tuple[Array, Array]:
    """Transpose both operands, and convert groups of the batch to groups of features."""
    numbers, groups = parameters["dimension_numbers"], parameters["batch_group_count"]
    image = jnp.transpose(image, _image_axes(numbers.lhs_spec))
    if groups > 1:
        # Group g of the batch becomes block g of the features.
        image = jnp.moveaxis(image.reshape(groups, -1, *image.shape[1:]), 0, -2)
        image = image.reshape(*image.shape[:-2], -1)
    return image, jnp.transpose(kernel, _kernel_axes(numbers.rhs_spec))


def _convolution(image: Array, kernel: Array, shape: ConvolutionShape, precision: Any) -> Array:
    """Compute the convolution by XLA's own."""
    plain = tuple(range(image.ndim))
    order = lax.ConvDimensionNumbers(
        (0, plain[-1], *plain[1:-1]), (plain[-1], plain[-2], *plain[:-2]), (0, plain[-1], *plain[1:-1])
    )
    return lax.conv_general_dilated(
        image,
        kernel,
        window_strides=shape.strides,
        padding=shape.padding,
        lhs_dilation=shape.image_dilation,
        rhs_dilation=shape.kernel_dilation,
        dimension_numbers=order,
        feature_group_count=shape.groups,
        precision=precision,
    )


def _padded(image: Array, kernel: Array, shape: ConvolutionShape, precision: Any) -> Array:
    """Compute it by XLA's own with one more column of padding, and cut the additional output."""
    *others, (before, after) = shape.padding
    padded = dataclasses.replace(shape, padding=(*others, (before, after + 1)))
    return _convolution(image, kernel, padded, precision)[..., : shape.output[-1], :]


def _im2col(image: Array, kernel: Array, shape: ConvolutionShape, precision: Any) -> Array:
    """Compute it as (positions, taps x features) by (taps x features, filters), some images at a time."""
    flat = kernel.reshape(-1, shape.filters)

    def product(images: Array) -> Array:
        columns = jnp.concatenate(_tap_windows(images, shape), axis=-1)
        return jnp.dot(columns.reshape(-1, flat.shape[0]), flat, precision=precision)

    pieces = _pieces(shape, shape.batch)
    result = product(image) if pieces == 1 else lax.map(product, image.reshape(pieces, -1, *image.shape[1:]))
    return result.reshape(shape.batch, *shape.output, -1)


def _im2col_by_position(image: Array, kernel: Array, shape: ConvolutionShape, precision: Any) -> Array:
    """Compute it as (positions, features x taps) by (features x taps, filters), some features at a time."""
    # Features first: they are the images of the forward pass, so each is contiguous in memory.
    image, kernel = jnp.moveaxis(image, -1, 1), jnp.moveaxis(kernel, -2, 0)
    pieces = _pieces(shape, shape.features)
    count = shape.features // pieces

    def add(i: Any, total: Array) -> Array:
        images = lax.dynamic_slice_in_dim(image, i * count, count, 1)
        kernels = lax.dynamic_slice_in_dim(kernel, i * count, count, 0)
        columns = jnp.concatenate(_position_windows(images, 2, shape), axis=0)
        flat = kernels.reshape(-1, shape.filters)
        return total + jnp.dot(columns.reshape(-1, flat.shape[0]), flat, precision=precision)

    zero = jnp.zeros((shape.positions * shape.batch, shape.filters), image.dtype)
    result = add(0, zero) if pieces == 1 else lax.fori_loop(0, pieces, add, zero)
    return jnp.moveaxis(result.reshape(*shape.output, shape.batch, -1), -2, 0)


def _shifted_products(image: Array, kernel: Array, shape: ConvolutionShape, precision: Any) -> Array:
    """Compute it elementwise: add shifted images; for the kernel's gradient, add the elements of each shifted image."""
    del precision  # It concerns matrix products only.
    if not _is_over_positions(shape):
        products = zip(_tap_windows(image, shape), kernel.reshape(-1, shape.groups), strict=True)
        return functools.reduce(jnp.add, [window * tap for window, tap in products])
    image = image[0].reshape(*image.shape[1:-1], shape.groups, shape.features)
    windows = _position_windows(image, 0, shape)
    sums = [jnp.einsum("...gf,...fg->g", window, kernel) for window in windows]
    return jnp.stack(sums).reshape(1, *shape.output, shape.groups)


FORMS: dict[ConvolutionForm, Callable[[Array, Array, ConvolutionShape, Any], Array]] = {
    "channels last": _convolution,
    "padded": _padded,
    "im2col": _im2col,
    "im2col by position": _im2col_by_position,
    "shifted products": _shifted_products,
}


def _is_over_positions(shape: ConvolutionShape) -> bool:
    """Return whether the output has fewer positions than the kernel has taps, as in a kernel's gradient."""
    return shape.positions < shape.taps


def _pieces(shape: ConvolutionShape, count: int) -> int:
    """Return the smallest divisor of `count` for which a piece's columns fit into MAX_COLUMN_BYTES, or `count`."""
    divisors = (n for n in range(1, count + 1) if count % n == 0)
    return next(n for n in divisors if shape.column_bytes <= n * MAX_COLUMN_BYTES or n == count)


def _tap_windows(image: Array, shape: ConvolutionShape) -> list[Array]:
    """Return the elements of the image that each tap multiplies, `(batch, *output, features)`."""
    return _windows(image, 1, shape, (shape.kernel, shape.kernel_dilation), (shape.output, shape.strides))


def _position_windows(image: Array, first: int, shape: ConvolutionShape) -> list[Array]:
    """Return the window of the image at each output position; its spatial axes begin at `first`."""
    return _windows(image, first, shape, (shape.output, shape.strides), (shape.kernel, shape.kernel_dilation))


def _windows(
    image: Array, first: int, shape: ConvolutionShape, starts: tuple[Sizes, Sizes], spans: tuple[Sizes, Sizes]
) -> list[Array]:
    """Return the windows of an image.

    Args:
        image: the image.
        first: index of its first spatial axis.
        shape: padding and dilation of the image.
        starts: number of windows along each spatial axis, and their distance.
        spans: number of elements of a window along each spatial axis, and their distance.
    """
    space = range(first, first + len(shape.kernel))
    # 1. Pad and dilate the image. Negative padding crops it.
    borders = [(0, 0, 0)] * image.ndim
    for axis, (before, after), dilation in zip(space, shape.padding, shape.image_dilation, strict=True):
        borders[axis] = before, after, dilation - 1
    image = lax.pad(image, jnp.zeros((), image.dtype), borders)
    # 2. Take one strided slice for each window.
    windows = []
    for position in itertools.product(*map(range, starts[0])):
        slices = [slice(None)] * image.ndim
        for axis, index, distance, size, step in zip(space, position, starts[1], *spans, strict=True):
            slices[axis] = slice(index * distance, index * distance + (size - 1) * step + 1, step)
        windows.append(image[tuple(slices)])
    return windows
