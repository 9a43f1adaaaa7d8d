"""Shapes: the user's arrays as `(batch, height, width, channels)`, and back.

Rule: an array of one example with no axis becomes `(1, 1, 1)`, with one axis `(1, 1, channels)`. With two axes it
becomes `(1, width, channels)`, with three `(height, width, channels)`. With more axes it becomes
`(1, all the others, the last)`. Numbers keep their row-major order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from anytpu.chip.graph.nodes import Padding, Pair, Shape


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The steps of a kernel or a window along (height, width), as in `Convolution`."""

    strides: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Padding = ((0, 0), (0, 0))
    groups: int = 1

    def result(self, source: Shape, kernel: Pair, channels: int) -> Shape:
        """Return the shape of the result for a kernel of a size.

        Example:
            >>> Geometry(strides=(2, 2), padding=((1, 1), (0, 0))).result((8, 9, 3), (3, 3), 16)
            (4, 4, 16)
        """
        height, width = (
            (source[axis] + sum(self.padding[axis]) - (kernel[axis] - 1) * self.dilation[axis] - 1)
            // self.strides[axis]
            + 1
            for axis in (0, 1)
        )
        return height, width, channels


def canonical_shape(shape: Sequence[int]) -> Shape:
    """Return `(height, width, channels)` of an example of a shape.

    Example:
        >>> canonical_shape(()), canonical_shape((7,)), canonical_shape((5, 7)), canonical_shape((2, 3, 5, 7))
        ((1, 1, 1), (1, 1, 7), (1, 5, 7), (1, 30, 7))
    """
    if len(shape) == 3:
        return (int(shape[0]), int(shape[1]), int(shape[2]))
    last = int(shape[-1]) if len(shape) else 1
    return (1, math.prod(int(size) for size in shape[:-1]), last)


def canonical(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return the user's array `(batch, *shape)` as `(batch, height, width, channels)`.

    Example:
        >>> canonical(np.zeros((8, 5, 7)), (5, 7)).shape
        (8, 1, 5, 7)
    """
    return np.reshape(array, (len(array), *canonical_shape(shape)))
