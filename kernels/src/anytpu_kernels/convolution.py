"""Convolutions by oneDNN: the forward pass, and both gradients, which are convolutions in JAX too.

Idea: JAX has a single operation, `conv_general_dilated`, for a convolution and its gradients; oneDNN has three. The
parameters show the role. With zeros between the elements of the image, it is the gradient of an image. With windows
larger than the output, or groups in the batch, it is the gradient of a kernel. For oneDNN, each axis has its stride in
memory, so no operand is transposed before the call.

Rule: `describe` decides from shapes alone. Only this module translates between JAX's and oneDNN's terms.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from anytpu_kernels.library import load

Sizes = tuple[int, ...]

FORWARD, IMAGE_GRADIENT, KERNEL_GRADIENT = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class ArrayLayout:
    """The layout of an array in memory, with its axes in oneDNN's order.

    Attributes:
        sizes: size of each axis: `(batch, features, *space)`, or for a kernel `([groups,] out, in, *space)`.
        strides: stride of each axis, in elements.
    """

    sizes: Sizes
    strides: Sizes


@dataclasses.dataclass(frozen=True)
class ConvolutionDescription:
    """A convolution in oneDNN's terms.

    Attributes:
        role: FORWARD, IMAGE_GRADIENT or KERNEL_GRADIENT.
        image: the input of the forward pass, or its gradient.
        kernel: the kernel of the forward pass, or its gradient.
        output: the output of the forward pass, or its gradient.
        strides: stride of the window along each spatial axis.
        dilation: dilation of the kernel along each spatial axis in oneDNN's count, 0 for none.
        before: padding before the image along each spatial axis.
        after: padding after the image along each spatial axis; negative values crop.
        parts: number of such convolutions in the call.
        steps: number of elements between the starts of two parts, in the left operand, the right operand, the result.
    """

    role: int
    image: ArrayLayout
    kernel: ArrayLayout
    output: ArrayLayout
    strides: Sizes
    dilation: Sizes
    before: Sizes
    after: Sizes
    parts: int = 1
    steps: Sizes = (0, 0, 0)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the call, for the kernel in the library."""
        arrays = {"strides": self.strides, "dilation": self.dilation, "before": self.before, "after": self.after}
        for name in ("image", "kernel", "output"):
            layout = getattr(self, name)
            arrays |= {name: layout.sizes, f"{name}_strides": layout.strides}
        arrays["parts"] = (self.parts, *self.steps)
        return {"role": np.int64(self.role)} | {name: np.asarray(array, np.int64) for name, array in arrays.items()}


def takes_convolution(image: Any, kernel: Any, parameters: dict[str, Any]) -> bool:
    """Return whether `convolution` supports a convolution and is faster than XLA.

    Args:
        image: the left operand, or its abstract value.
        kernel: the right operand, or its abstract value.
        parameters: parameters of `jax.lax.conv_general_dilated_p`.
    """
    if any(np.dtype(operand.dtype) != np.float32 for operand in (image, kernel)):
        return False
    if parameters["preferred_element_type"] not in (None, np.dtype("float32")):
        return False
    described = describe(image.shape, kernel.shape, parameters)
    return described is not None and _is_fast(described)


def _is_fast(described: ConvolutionDescription) -> bool:
    """Return whether oneDNN has an optimized implementation of a convolution, not only its reference loops."""
    arrays = [
        described.image.sizes,
        described.kernel.sizes,
        described.output.sizes,
        described.strides,
        described.dilation,
        described.before,
        described.after,
    ]
    numbers = [described.role, described.parts, *map(len, arrays), *(size for array in arrays for size in array)]
    return bool(load().anytpu_is_fast_convolution((ctypes.c_int64 * len(numbers))(*numbers)))


def convolution(image: Array, kernel: Array, **parameters: Any) -> Array:
    """Compute `jax.lax.conv_general_dilated_p` by oneDNN.

    Args:
        image: the left operand, float32.
        kernel: the right operand, float32.
        **parameters: parameters of the primitive, for which `takes_convolution` is true.
    """
    load()
    described = describe(image.shape, kernel.shape, parameters)
    assert described is not None, "this convolution is not supported: check it with takes_convolution"
    if described.role == IMAGE_GRADIENT:
        kernel = lax.rev(kernel, parameters["dimension_numbers"].rhs_spec[2:])
    result = jax.ShapeDtypeStruct(result_shape(image.shape, kernel.shape, parameters), np.float32)
    return jax.ffi.ffi_call("anytpu_convolution", result)(image, kernel, **described.attributes)


def result_shape(image: Sizes, kernel: Sizes, parameters: dict[str, Any]) -> Sizes:
    """Return the shape of a convolution's result."""
    numbers = parameters["dimension_numbers"]
    sizes = [image[numbers.lhs_spec[0]] // parameters["batch_group_count"], kernel[numbers.rhs_spec[0]]]
    axes = zip(
        [image[axis] for axis in numbers.lhs_spec[2:]],
        [kernel[axis] for axis in numbers.rhs_spec[2:]],
        parameters["lhs_dilation"],
        parameters["rhs_dilation"],
        parameters["window_strides"],
        parameters["padding"],
        strict=True,
    )
    sizes += [max(0, (_span(n, s) + sum(pads) - _span(k, d)) // step + 1) for n, k, s, d, step, pads in axes]
    shape = [0] * len(sizes)
    for axis, size in zip(numbers.out_spec, sizes, strict=True):
        shape[axis] = size
    return tuple(shape)


def describe(image: Sizes, kernel: Sizes, parameters: dict[str, Any]) -> ConvolutionDescription | None:
    """Return a convolution in oneDNN's terms, or None if oneDNN does not support it."""
    numbers = parameters["dimension_numbers"]
    result = result_shape(image, kernel, parameters)
    if not 1 <= len(image) - 2 <= 3 or 0 in (*image, *kernel, *result):
        return None
    left, right, out = (
        _layout(shape, spec)
        for shape, spec in ((image, numbers.lhs_spec), (kernel, numbers.rhs_spec), (result, numbers.out_spec))
    )
    if any(spread > 1 for spread in parameters["lhs_dilation"]):
        described = _image_gradient(left, right, out, parameters)
    elif parameters["batch_group_count"] > 1 or math.prod(out.sizes[2:]) < math.prod(right.sizes[2:]):
        described = _kernel_gradient(left, right, out, parameters)
    else:
        described = _forward(left, right, out, parameters)
    return described if described is not None and min(described.before) >= 0 else None


def _forward(
    left: ArrayLayout, right: ArrayLayout, out: ArrayLayout, parameters: dict[str, Any]
) -> ConvolutionDescription:
    groups = parameters["feature_group_count"]
    before = tuple(low for low, _ in parameters["padding"])
    return _with_padding(
        ConvolutionDescription(
            role=FORWARD,
            image=left,
            kernel=_grouped(right, groups),
            output=out,
            strides=parameters["window_strides"],
            dilation=tuple(d - 1 for d in parameters["rhs_dilation"]),
            before=before,
            after=before,
        )
    )


def _image_gradient(
    left: ArrayLayout, right: ArrayLayout, out: ArrayLayout, parameters: dict[str, Any]
) -> ConvolutionDescription | None:
    """Describe an image's gradient: the left operand is the output's gradient, dilated; the kernel is reversed."""
    if any(step > 1 for step in parameters["window_strides"]) or parameters["batch_group_count"] > 1:
        return None
    kernel = _grouped(right, parameters["feature_group_count"])
    kernel = ArrayLayout(*(_swapped(axes, len(axes) - len(left.sizes)) for axes in (kernel.sizes, kernel.strides)))
    dilation = parameters["rhs_dilation"]
    lows = (low for low, _ in parameters["padding"])
    return _with_padding(
        ConvolutionDescription(
            role=IMAGE_GRADIENT,
            image=out,
            kernel=kernel,
            output=left,
            strides=parameters["lhs_dilation"],
            dilation=tuple(d - 1 for d in dilation),
            before=tuple(_span(k, d) - 1 - low for k, d, low in zip(right.sizes[2:], dilation, lows, strict=True)),
            after=(),
        )
    )


def _kernel_gradient(
    left: ArrayLayout, right: ArrayLayout, out: ArrayLayout, parameters: dict[str, Any]
) -> ConvolutionDescription | None:
    """Describe a kernel's gradient: the left operand is the image with features as batch, the right the gradient."""
    groups, parts = parameters["batch_group_count"], parameters["feature_group_count"]
    if groups > 1 and parts > 1:
        return None
    image = ArrayLayout(_swapped(left.sizes), _swapped(left.strides))
    output = ArrayLayout(_swapped(right.sizes), _swapped(right.strides))
    kernel = ArrayLayout(_swapped(out.sizes), _swapped(out.strides))
    steps = (0, 0, 0)
    if parts > 1:  # A kernel for each replica: the rows of the replicas are concatenated.
        rows, filters = image.sizes[0] // parts, output.sizes[1] // parts
        steps = rows * image.strides[0], filters * output.strides[1], filters * kernel.strides[0]
        image = dataclasses.replace(image, sizes=(rows, *image.sizes[1:]))
        output = dataclasses.replace(output, sizes=(output.sizes[0], filters, *output.sizes[2:]))
        kernel = dataclasses.replace(kernel, sizes=(filters, *kernel.sizes[1:]))
    return _with_padding(
        ConvolutionDescription(
            role=KERNEL_GRADIENT,
            image=image,
            kernel=_grouped(kernel, groups),
            output=output,
            strides=parameters["rhs_dilation"],
            dilation=tuple(step - 1 for step in parameters["window_strides"]),
            before=tuple(low for low, _ in parameters["padding"]),
            after=(),
            parts=parts,
            steps=steps,
        )
    )


def _with_padding(described: ConvolutionDescription) -> ConvolutionDescription | None:
    """Add the padding after the image, which follows from the other fields; None if oneDNN does not support it."""
    space = len(described.image.sizes) - 2
    axes = zip(
        described.image.sizes[2:],
        described.kernel.sizes[-space:],
        described.output.sizes[2:],
        described.strides,
        described.dilation,
        described.before,
        strict=True,
    )
    after = tuple((m - 1) * step + _span(k, d + 1) - n - low for n, k, m, step, d, low in axes)
    if any(high + step <= 0 for high, step in zip(after, described.strides, strict=True)):
        return None
    return dataclasses.replace(described, after=after)


def _layout(shape: Sizes, spec: Sizes) -> ArrayLayout:
    """Return the layout of a contiguous array, with its axes in the order of a spec."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return ArrayLayout(tuple(shape[axis] for axis in spec), tuple(strides[axis] for axis in spec))


def _grouped(kernel: ArrayLayout, groups: int) -> ArrayLayout:
    """Split the first axis of a kernel into an axis of groups and the filters of each, if there are several groups."""
    if groups == 1:
        return kernel
    filters = kernel.sizes[0] // groups
    return ArrayLayout((groups, filters, *kernel.sizes[1:]), (filters * kernel.strides[0], *kernel.strides))


def _swapped(sizes: Sizes, at: int = 0) -> Sizes:
    """Swap two adjacent entries."""
    return (*sizes[:at], sizes[at + 1], sizes[at], *sizes[at + 2 :])


def _span(size: int, dilation: int) -> int:
    """Return the size of a dilated axis; 0 for an empty axis."""
    return (size - 1) * dilation + 1 if size else 0
