"""Values of a quantized file: constants, tensors of the graph, and results that wait for their scale.

Idea: a file dequantizes, computes in floats, and quantizes again. A chip's node does all three. So the result of a
float operation is no tensor yet: `Pending` makes the node when the file quantizes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from anytpu.chip.graph.nodes import Quantization
from anytpu.chip.quantized.weights import MAX_SUM
from anytpu.errors import QuantizationError

MAX_NUMBERS = 2**27
"""Maximum numbers in a tensor for one example, four Unified Buffers, and in a product's weights."""


@dataclasses.dataclass(frozen=True, eq=False)
class Scaled:
    """A constant in integers, as weights are: real = (integers - zero_point) * scale.

    Attributes:
        integers: the integers, in their dtype.
        scale: float32 scale, one or one for each index of `axis`.
        zero_point: int64 zero point, one or one for each index of `axis`.
        axis: axis of the scales.
    """

    integers: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int = 0

    @property
    def centered(self) -> np.ndarray:
        """The integers minus their zero point, int64."""
        return self.integers.astype(np.int64) - self.spread(self.zero_point)

    @property
    def reals(self) -> np.ndarray:
        """The real numbers, float32."""
        return self.centered.astype(np.float32) * self.spread(self.scale)

    def reshaped(self, integers: np.ndarray, axis: int) -> Scaled:
        """Return the same scales for the integers in another order, with the scales along `axis`."""
        return dataclasses.replace(self, integers=integers, axis=axis)

    def quantized(self, reals: np.ndarray, low: float, high: float) -> np.ndarray:
        """Return real numbers of the shape of the integers in these scales, rounded and clipped, float64."""
        steps = np.rint(reals / self.spread(self.scale)) + self.spread(self.zero_point).astype(np.float64)
        return np.clip(steps, low, high)

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """Return one number, or numbers along `axis`, such that they broadcast over the integers."""
        if numbers.size == 1:
            return numbers.reshape(())
        return numbers.reshape([-1 if axis == self.axis else 1 for axis in range(self.integers.ndim)])


@dataclasses.dataclass(frozen=True)
class HeldTensor:
    """A value that a tensor of the graph holds.

    Attributes:
        tensor: the tensor, `(height, width, channels)`.
        dims: the file's shape of one example.
        channels_first: whether the file's order of numbers is (channels, height, width); otherwise it is the tensor's.
        is_float: whether the file has not quantized it yet, as an input.
        stored: dtype of the file's integers, before the file dequantizes them; "": real numbers.
    """

    tensor: str
    dims: tuple[int, ...]
    channels_first: bool = False
    is_float: bool = False
    stored: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Pending:
    """A result in floats of tensors in integers, which becomes a node when its scale is known.

    Attributes:
        dims, channels_first: as in `HeldTensor`.
        make: adds the node, given the result's quantization and the bounds of a clip; returns the tensor.
        own: quantization of the result if the file need not give it; None if it must.
        low, high: bounds of a clip after the operation.
        may_clip: whether the node can clip.
        plus: returns a product with integers added to its sums, one for each channel; None: it is no product.
    """

    dims: tuple[int, ...]
    channels_first: bool
    make: Callable[[Quantization, float | None, float | None], str]
    own: Quantization | None = None
    low: float | None = None
    high: float | None = None
    may_clip: bool = True
    plus: Callable[[np.ndarray], Pending] | None = None


Value = HeldTensor | Pending | Scaled | np.ndarray
"""A value of a file; an array is a constant of real numbers or of integers."""


def every_integer(own: Quantization) -> np.ndarray:
    """Return all integers of a quantization."""
    return np.arange(own.low, own.high + 1)


def check_sums(layer: str, own: Quantization, factor: float, offset: float = 0) -> None:
    """Raise an error if a sum may exceed 32 bits: the largest integer of the input times a factor, and an offset."""
    largest = max(own.high - own.zero_point, own.zero_point - own.low) * factor + offset
    if largest > MAX_SUM:
        raise QuantizationError(
            f"The sums of {layer!r:.100} reach {largest:,.0f}, and the chip's have 32 bits: quantize its input with 8 "
            "bits, or with a larger scale."
        )


def in_one_group(weights: np.ndarray, groups: int) -> np.ndarray:
    """Return the weights of a convolution in groups as those of one group, with zeros between the groups.

    Those that would be more than `MAX_NUMBERS` stay as they are.
    """
    height, width, inputs, outputs = weights.shape
    share = outputs // groups
    if weights.size * groups > MAX_NUMBERS:
        return weights
    whole = np.zeros((height, width, inputs * groups, outputs), weights.dtype)
    for group in range(groups):
        taken = slice(group * share, (group + 1) * share)
        whole[:, :, group * inputs : (group + 1) * inputs, taken] = weights[..., taken]
    return whole
