"""`BatchLayout`: the layout of a batch's examples in an array.

Rule: index i of the batch's axis is (p * rows + example) * after + q. `before` and `after` are 1 unless a program has
merged the batch with other axes, as `reshape(batch * time, features)` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """The layout of a batch's examples in an array.

    Attributes:
        axis: the axis that holds the batch.
        rows: number of examples.
        before, after: sizes of the axes that are merged with the batch, outside and inside of it.

    Example:
        >>> BatchLayout(1, 8).example_shape((5, 8, 3)), BatchLayout(0, 8, after=5).example_shape((40, 3))
        ((5, 3), (5, 3))
    """

    axis: int
    rows: int
    before: int = 1
    after: int = 1

    @property
    def is_merged(self) -> bool:
        """Whether the axis holds more than the batch."""
        return self.before * self.after != 1

    def example_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one example of an array."""
        return (*shape[: self.axis], *self._kept, *shape[self.axis + 1 :])

    @property
    def _kept(self) -> tuple[int, ...]:
        return (self.before * self.after,) if self.is_merged else ()

    def example_axis(self, axis: int) -> int:
        """Return the index in one example of an array's axis other than that of the batch."""
        return axis if axis < self.axis or self.is_merged else axis - 1

    def rows_first(self, array: np.ndarray) -> np.ndarray:
        """Return an array as `(rows, *example shape)`."""
        shape = array.shape
        split = array.reshape(*shape[: self.axis], self.before, self.rows, self.after, *shape[self.axis + 1 :])
        return np.moveaxis(split, self.axis + 1, 0).reshape(self.rows, *self.example_shape(shape))

    def batched(self, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return `(rows, *example shape)`, in any grouping of the axes of an example, as an array of a shape."""
        outside, inside = shape[: self.axis], shape[self.axis + 1 :]
        split = array.reshape(self.rows, *outside, self.before, self.after, *inside)
        return np.moveaxis(split, 0, self.axis + 1).reshape(shape)

    def is_the_same_for_all(self, array: np.ndarray) -> bool:
        """Return whether an array holds the same values for every example."""
        if array.strides[self.axis] == 0 or self.rows == 1:
            return True
        rows = self.rows_first(array)
        return bool(np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape), equal_nan=array.dtype.kind == "f"))
