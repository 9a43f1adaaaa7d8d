"""Row axes: the axes of a value that index the rows of a padded batch, and the entries that belong to pads.

Idea: the pads are a replica's last rows. A row axis is a list of segments. A segment has either the same number of
entries for each row, or entries that belong to no row. `concatenate([x, x])` has two segments. A reshape of `(rows, 4)`
to `(rows * 4,)` has one segment with four entries per row. The mask of the axis follows from the segments and the
number of real rows.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class AxisSegment(NamedTuple):
    """A contiguous part of an axis.

    Attributes:
        per_row: number of entries for each row; 0 for entries that belong to no row.
        fixed: number of entries that belong to no row; 0 for entries of rows.
    """

    per_row: int
    fixed: int

    def size(self, rows: int) -> int:
        """Return the number of entries for `rows` rows, pads included."""
        return self.per_row * rows + self.fixed


class PadState(enum.IntEnum):
    """Knowledge about the entries of pads along a row axis, from the least to the most.

    The order is UNMASKED < SET_BY_STEP < ZERO, so `min` returns the knowledge that holds for several axes.
    """

    UNMASKED = 0
    """Computed from the pads' copies of real rows."""
    SET_BY_STEP = 1
    """Set by the step, with `jnp.where(tpu.row_mask(x), ...)`."""
    ZERO = 2
    """Zero, or False."""


@dataclasses.dataclass(frozen=True)
class RowAxis:
    """An axis over the rows of a padded batch.

    Attributes:
        segments: its segments, in order.
        pads: the state of the pads' entries.
        is_uniform: True if all entries are equal, or independent random numbers, so their order does not matter.
    """

    segments: tuple[AxisSegment, ...]
    pads: PadState = PadState.UNMASKED
    is_uniform: bool = False

    @property
    def per_row(self) -> int | None:
        """Number of entries for each row if the axis has one segment; otherwise None."""
        return self.segments[0].per_row if len(self.segments) == 1 else None

    def size(self, rows: int) -> int:
        """Return the number of entries for `rows` rows, pads included."""
        return sum(segment.size(rows) for segment in self.segments)

    def with_pads(self, pads: PadState) -> RowAxis:
        """Return the axis with another state of the pads."""
        return dataclasses.replace(self, pads=pads)

    def merged(self, inner: int, outer: int = 1) -> RowAxis:
        """Return the axis of a reshape that merges this axis with adjacent axes that are not over rows.

        Args:
            inner: product of the sizes of the merged axes behind it.
            outer: product of the sizes of the merged axes before it.
        """
        segments = tuple(AxisSegment(segment.per_row * inner, segment.fixed * inner) for segment in self.segments)
        return axis_of(segments * outer, self.pads)

    def bounds(self, *rows: int) -> list[tuple[int, ...]]:
        """Return the start of each segment, and the size of the axis, each for every given number of rows."""
        sizes = [[segment.size(count) for segment in self.segments] for count in rows]
        return [tuple(sum(each[:index]) for each in sizes) for index in range(len(self.segments) + 1)]

    def mask(self, real_rows: Any, rows: int) -> Any:
        """Return the mask of the entries that do not belong to pads, bool `(size,)`.

        Args:
            real_rows: number of real rows, an integer scalar.
            rows: number of rows, pads included.
        """
        # The row of each entry; -1, which is below any number of rows, for entries that belong to no row.
        row_of_entry = [
            np.repeat(np.arange(rows), segment.per_row) if segment.per_row else np.full(segment.fixed, -1)
            for segment in self.segments
        ]
        return jnp.asarray(np.concatenate(row_of_entry).astype(np.int32)) < real_rows


def axis_of(segments: Sequence[AxisSegment], pads: PadState = PadState.UNMASKED) -> RowAxis:
    """Return the row axis of some segments, with adjacent segments without rows merged."""
    merged: list[AxisSegment] = []
    for segment in segments:
        if not (segment.per_row or segment.fixed):
            continue
        if merged and not segment.per_row and not merged[-1].per_row:
            segment = AxisSegment(0, merged.pop().fixed + segment.fixed)
        merged.append(segment)
    return RowAxis(tuple(merged), pads)


ROWS = RowAxis((AxisSegment(1, 0),))
"""The row axis of the batch itself."""


@dataclasses.dataclass(frozen=True)
class RealRows:
    """The real rows of one replica, while a padded step is computed.

    Attributes:
        rows: number of real rows, an int32 scalar.
        padded: number of rows including pads.
        total: number of real rows of all replicas, an int32 scalar.
    """

    rows: Any
    padded: int
    total: Any

    def masked(self, array: Any, dimension: int, axis: RowAxis, fill: Callable) -> Any:
        """Return an array with the pads' entries along an axis replaced by `fill(dtype)`."""
        if axis.pads is PadState.ZERO and fill is zero:
            return array
        shape = [1] * array.ndim
        shape[dimension] = -1
        filled = jnp.asarray(fill(array.dtype), array.dtype)
        return jnp.where(axis.mask(self.rows, self.padded).reshape(shape), array, filled)


def zero(dtype: Any) -> Any:
    """Return zero, or False."""
    return jnp.zeros((), dtype)


@dataclasses.dataclass(frozen=True)
class AbstractValue:
    """The analysis's knowledge about a value of the step.

    Attributes:
        axes: the `RowAxis` of each axis; None for an axis that is not over rows.
        is_zero: True for a constant zero, or False.
    """

    axes: tuple[RowAxis | None, ...]
    is_zero: bool = False

    @property
    def has_rows(self) -> bool:
        """Whether an axis is over rows."""
        return any(axis is not None for axis in self.axes)

    def row_axes(self) -> list[tuple[int, RowAxis]]:
        """Return (dimension, axis) for each row axis."""
        return [(dimension, axis) for dimension, axis in enumerate(self.axes) if axis is not None]


def without_rows(aval: Any, is_zero: bool = False) -> AbstractValue:
    """Return the abstract value of an array without row axes."""
    return AbstractValue((None,) * len(getattr(aval, "shape", ())), is_zero)


class AxisMismatchError(Exception):
    """Two row axes have different segments: their entries with the same index belong to different rows."""


def aligned(axes: Sequence[RowAxis | None]) -> RowAxis | None:
    """Return the result's axis of an operation that pairs the entries of several axes; None if none is over rows.

    Raises:
        AxisMismatchError: the axes have different segments.
    """
    row_axes = [axis for axis in axes if axis is not None]
    if not row_axes:
        return None
    ordered = [axis for axis in row_axes if not axis.is_uniform] or row_axes
    if any(axis.segments != ordered[0].segments for axis in ordered):
        raise AxisMismatchError
    pads = min((axis.pads for axis in row_axes if not axis.is_uniform), default=ordered[0].pads)
    return RowAxis(ordered[0].segments, pads, ordered[0].is_uniform)
