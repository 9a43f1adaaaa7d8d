"""Row axes: which axes of a value run over the rows of a padded batch, and which of their entries belong to pads.

Idea: the pads are a replica's last rows. An axis over rows is a list of segments: a run of entries for each row, or
entries that belong to no row. `concatenate([x, x])` has two segments, a reshape of `(rows, 4)` to `(rows * 4,)` has
one segment with four entries a row. The mask of the axis follows from the segments and the number of real rows.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class Segment(NamedTuple):
    """Part of an axis.

    Attributes:
        each: the number of entries for each row; 0 for entries that belong to no row.
        plain: the number of entries that belong to no row; 0 for entries of rows.
    """

    each: int
    plain: int

    def size(self, room: int) -> int:
        """Return the number of entries, for `room` rows with pads."""
        return self.each * room + self.plain


class Fill(enum.IntEnum):
    """The entries of pads."""

    ANY = 0
    """Computed from the pads' copies of real rows."""
    CHOSEN = 1
    """Chosen by the step, by `jnp.where(tpu.row_mask(x), ...)`."""
    ZERO = 2
    """Zero, or False."""


@dataclasses.dataclass(frozen=True)
class RowAxis:
    """An axis over the rows of a padded batch.

    Attributes:
        segments: its parts, in order.
        fill: the entries of pads.
        is_free: all entries are equal, or independent random numbers: any other order of segments is the same.
    """

    segments: tuple[Segment, ...]
    fill: Fill = Fill.ANY
    is_free: bool = False

    @property
    def each(self) -> int | None:
        """The number of entries for each row of an axis with one segment; None for one with more."""
        return self.segments[0].each if len(self.segments) == 1 else None

    def size(self, room: int) -> int:
        """Return the number of entries, for `room` rows with pads."""
        return sum(segment.size(room) for segment in self.segments)

    def filled(self, fill: Fill) -> RowAxis:
        """Return the axis with other entries of pads."""
        return dataclasses.replace(self, fill=fill)

    def scaled(self, inner: int, outer: int = 1) -> RowAxis:
        """Return the axis of a reshape that merges this axis with plain ones.

        Args:
            inner: the product of the sizes of the axes behind.
            outer: the product of the sizes of the axes before.
        """
        segments = tuple(Segment(segment.each * inner, segment.plain * inner) for segment in self.segments)
        return axis_of(segments * outer, self.fill)

    def bounds(self, *rooms: int) -> list[tuple[int, ...]]:
        """Return the offset of each segment and the size, for each number of rows."""
        sizes = [[segment.size(room) for segment in self.segments] for room in rooms]
        return [tuple(sum(each[:index]) for each in sizes) for index in range(len(self.segments) + 1)]

    def mask(self, rows: Any, room: int) -> Any:
        """Return which entries do not belong to pads, bool `(size,)`.

        Args:
            rows: the number of real rows, an integer scalar.
            room: the number of rows with pads.
        """
        # The row of each entry; -1, which is below any number of rows, for those that belong to none.
        entries = [
            np.repeat(np.arange(room), segment.each) if segment.each else np.full(segment.plain, -1)
            for segment in self.segments
        ]
        return jnp.asarray(np.concatenate(entries).astype(np.int32)) < rows


def axis_of(segments: Sequence[Segment], fill: Fill = Fill.ANY) -> RowAxis:
    """Return the row axis of segments, with neighbours that belong to no row merged."""
    merged: list[Segment] = []
    for segment in segments:
        if not (segment.each or segment.plain):
            continue
        if merged and not segment.each and not merged[-1].each:
            segment = Segment(0, merged.pop().plain + segment.plain)
        merged.append(segment)
    return RowAxis(tuple(merged), fill)


ROWS = RowAxis((Segment(1, 0),))
"""The row axis of the batch itself."""


@dataclasses.dataclass(frozen=True)
class Value:
    """A value of the step.

    Attributes:
        axes: for each axis, its `RowAxis`, or None where it does not run over rows.
        is_zero: a constant zero, or False.
    """

    axes: tuple[RowAxis | None, ...]
    is_zero: bool = False

    @property
    def has_rows(self) -> bool:
        """Whether an axis runs over rows."""
        return any(axis is not None for axis in self.axes)

    def rows(self) -> list[tuple[int, RowAxis]]:
        """Return the position of each row axis, and the axis."""
        return [(position, axis) for position, axis in enumerate(self.axes) if axis is not None]


class MismatchError(Exception):
    """Two row axes do not have the same segments: entry i of one and of the other belong to different rows."""


def joined(axes: Sequence[RowAxis | None]) -> RowAxis | None:
    """Return the axis of an operation that takes the entries of several axes pairwise; None where none is over rows.

    Raises:
        MismatchError: the axes have different segments.
    """
    found = [axis for axis in axes if axis is not None]
    if not found:
        return None
    bound = [axis for axis in found if not axis.is_free] or found
    if any(axis.segments != bound[0].segments for axis in bound):
        raise MismatchError
    fill = min((axis.fill for axis in found if not axis.is_free), default=bound[0].fill)
    return RowAxis(bound[0].segments, fill, bound[0].is_free)
