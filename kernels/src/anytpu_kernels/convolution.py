"""Convolutions by oneDNN: forward, and both gradients, which JAX spells as convolutions too.

Idea: JAX has one operation, `conv_general_dilated`, for a convolution and its gradients; oneDNN has three. Which one
it is can be read off: an image with zeros between its elements is the gradient of an image; where the windows are
larger than the output, or groups lie in the batch, it is the gradient of a kernel. Each is told to oneDNN with the
axes as they lie in memory, so nothing is transposed before.

Rule: `describe` decides from shapes alone and is the only place that knows both languages.
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
class Lying:
    """An array in oneDNN's order of axes.

    Attributes:
        sizes: of its axes: `(batch, features, *space)`, or for a kernel `([groups,] out, in, *space)`.
        strides: for each of them, how many numbers lie between neighbours.
    """

    sizes: Sizes
    strides: Sizes


@dataclasses.dataclass(frozen=True)
class Description:
    """A convolution in oneDNN's terms.

    Attributes:
        role: FORWARD, IMAGE_GRADIENT or KERNEL_GRADIENT.
        image: what the forward pass reads.
        kernel: its kernel.
        output: what it makes.
        strides: the step of the window along each axis of space.
        dilation: the places left out between neighbours of the kernel, 0 when it is dense.
        before: the padding before the image along each axis of space.
        after: likewise after it; may be negative.
        parts: how many such convolutions there are.
        steps: numbers between one and the next in the left operand, the right operand and the result.
    """

    role: int
    image: Lying
    kernel: Lying
    output: Lying
    strides: Sizes
    dilation: Sizes
    before: Sizes
    after: Sizes
    parts: int = 1
    steps: Sizes = (0, 0, 0)

    @property
    def attributes(self) -> dict[str, Any]:
        """What the kernel in the library gets beside its operands."""
        arrays = {"strides": self.strides, "dilation": self.dilation, "before": self.before, "after": self.after}
        for name in ("image", "kernel", "output"):
            lying = getattr(self, name)
            arrays |= {name: lying.sizes, f"{name}_strides": lying.strides}
        arrays["parts"] = (self.parts, *self.steps)
        return {"role": np.int64(self.role)} | {name: np.asarray(one, np.int64) for name, one in arrays.items()}


def takes_convolution(image: Any, kernel: Any, parameters: dict[str, Any]) -> bool:
    """Say whether oneDNN computes a convolution here.

    Args:
        image: the left operand, or its abstract value.
        kernel: the right operand, likewise.
        parameters: those of `jax.lax.conv_general_dilated_p`.
    """
    if any(np.dtype(one.dtype) != np.float32 for one in (image, kernel)):
        return False
    if parameters["preferred_element_type"] not in (None, np.dtype("float32")):
        return False
    described = describe(image.shape, kernel.shape, parameters)
    return described is not None and _is_fast(described)


def _is_fast(described: Description) -> bool:
    """Say whether oneDNN has more for a convolution than plain loops."""
    arrays = [
        described.image.sizes,
        described.kernel.sizes,
        described.output.sizes,
        described.strides,
        described.dilation,
        described.before,
        described.after,
    ]
    numbers = [described.role, described.parts, *map(len, arrays), *(size for one in arrays for size in one)]
    return bool(load().anytpu_is_fast_convolution((ctypes.c_int64 * len(numbers))(*numbers)))


def convolution(image: Array, kernel: Array, **parameters: Any) -> Array:
    """Compute what `jax.lax.conv_general_dilated_p` does, by oneDNN.

    Args:
        image: the left operand, float32.
        kernel: the right operand, float32.
        **parameters: those of the primitive; `takes_convolution` must have said yes.
    """
    load()
    described = describe(image.shape, kernel.shape, parameters)
    assert described is not None, "takes_convolution said no"
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


def describe(image: Sizes, kernel: Sizes, parameters: dict[str, Any]) -> Description | None:
    """Put a convolution in oneDNN's terms; None for one that it does not take."""
    numbers = parameters["dimension_numbers"]
    result = result_shape(image, kernel, parameters)
    if not 1 <= len(image) - 2 <= 3 or 0 in (*image, *kernel, *result):
        return None
    left, right, out = (
        _lying(shape, spec)
        for shape, spec in ((image, numbers.lhs_spec), (kernel, numbers.rhs_spec), (result, numbers.out_spec))
    )
    if any(spread > 1 for spread in parameters["lhs_dilation"]):
        described = _image_gradient(left, right, out, parameters)
    elif parameters["batch_group_count"] > 1 or math.prod(out.sizes[2:]) < math.prod(right.sizes[2:]):
        described = _kernel_gradient(left, right, out, parameters)
    else:
        described = _forward(left, right, out, parameters)
    return described if described is not None and min(described.before) >= 0 else None


def _forward(left: Lying, right: Lying, out: Lying, parameters: dict[str, Any]) -> Description:
    groups = parameters["feature_group_count"]
    before = tuple(low for low, _ in parameters["padding"])
    return _with_padding(
        Description(
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


def _image_gradient(left: Lying, right: Lying, out: Lying, parameters: dict[str, Any]) -> Description | None:
    """The output's gradient comes from the left, spread by the strides; the kernel is the forward one, reversed."""
    if any(step > 1 for step in parameters["window_strides"]) or parameters["batch_group_count"] > 1:
        return None
    kernel = _grouped(right, parameters["feature_group_count"])
    kernel = Lying(*(_swapped(one, len(one) - len(left.sizes)) for one in (kernel.sizes, kernel.strides)))
    dilation = parameters["rhs_dilation"]
    lows = (low for low, _ in parameters["padding"])
    return _with_padding(
        Description(
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


def _kernel_gradient(left: Lying, right: Lying, out: Lying, parameters: dict[str, Any]) -> Description | None:
    """The image comes from the left with its features as batch; the output's gradient is the kernel."""
    groups, parts = parameters["batch_group_count"], parameters["feature_group_count"]
    if groups > 1 and parts > 1:
        return None
    image = Lying(_swapped(left.sizes), _swapped(left.strides))
    output = Lying(_swapped(right.sizes), _swapped(right.strides))
    kernel = Lying(_swapped(out.sizes), _swapped(out.strides))
    steps = (0, 0, 0)
    if parts > 1:  # Replicas that each have a kernel: their rows lie one after the other.
        rows, filters = image.sizes[0] // parts, output.sizes[1] // parts
        steps = rows * image.strides[0], filters * output.strides[1], filters * kernel.strides[0]
        image = dataclasses.replace(image, sizes=(rows, *image.sizes[1:]))
        output = dataclasses.replace(output, sizes=(output.sizes[0], filters, *output.sizes[2:]))
        kernel = dataclasses.replace(kernel, sizes=(filters, *kernel.sizes[1:]))
    return _with_padding(
        Description(
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


def _with_padding(described: Description) -> Description | None:
    """Add the padding after the image, which follows from all else; None where oneDNN does not take it."""
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


def _lying(shape: Sizes, spec: Sizes) -> Lying:
    """Return an array of a shape, row after row, in the order of axes of a spec."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return Lying(tuple(shape[axis] for axis in spec), tuple(strides[axis] for axis in spec))


def _grouped(kernel: Lying, groups: int) -> Lying:
    """Give a kernel an axis of groups, where there are any; its first axis has them one after the other."""
    if groups == 1:
        return kernel
    filters = kernel.sizes[0] // groups
    return Lying((groups, filters, *kernel.sizes[1:]), (filters * kernel.strides[0], *kernel.strides))


def _swapped(sizes: Sizes, at: int = 0) -> Sizes:
    """Swap two neighbours."""
    return (*sizes[:at], sizes[at + 1], sizes[at], *sizes[at + 2 :])


def _span(size: int, apart: int) -> int:
    """Return the places from the first to the last of neighbours that lie apart, or 0 of none."""
    return (size - 1) * apart + 1 if size else 0
