"""im2col: gather the array's inputs from the Unified Buffer into the rows of a matrix, by few strided copies.

Idea: the source and the target of each value depend on registers and addresses only, not on data. So `gather_copies`
computes the copies once per image, and `gather` executes them in each run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from anytpu.chip.design import UNIT_BYTES
from anytpu.chip.machine.steps import PassInput
from anytpu.chip.machine.windows import cover

FourAxes = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class StridedCopy:
    """A copy from evenly spaced bytes of the Unified Buffer to evenly spaced numbers of a matrix.

    Attributes:
        shape: lines, columns, examples and lanes.
        place, place_strides: where it goes, in numbers of the matrix.
        source, source_strides: where it comes from, in bytes; strides of 4 axes.
        is_signed: how the bytes are read.
    """

    shape: FourAxes
    place: int
    place_strides: FourAxes
    source: int
    source_strides: FourAxes
    is_signed: bool


@dataclasses.dataclass(frozen=True)
class StridedFill:
    """One number for evenly spaced places of a matrix; names as in `StridedCopy`."""

    shape: FourAxes
    place: int
    place_strides: FourAxes
    number: int


def gather_copies(
    feeds: Sequence[PassInput], rows: int, columns: int, high: bool = False
) -> tuple[StridedCopy | StridedFill, ...]:
    """Return what fills a matrix `(rows, columns)` with what passes send into the array, side by side.

    Args:
        feeds: pass by pass; of the first `rows` rows of each.
        rows, columns: of the matrix.
        high: for numbers of 16 bits: the high bytes, not the low ones.
    """
    copies: list[StridedCopy | StridedFill] = []
    first = 0
    for feed in feeds:
        copies += _copies_of_feed(feed, rows, columns, first, high)
        first += feed.depth
    return tuple(copies)


def _copies_of_feed(
    feed: PassInput, rows: int, columns: int, first: int, high: bool
) -> list[StridedCopy | StridedFill]:
    plane, lanes = feed.plane, feed.lanes
    wide = plane.high_offset is not None
    number = (feed.fill >> 8 if high else feed.fill & 255) if wide else feed.fill
    is_signed = high if wide else not feed.unsigned
    start = (plane.address + (plane.high_offset or 0 if high else 0)) * UNIT_BYTES
    row_bytes = plane.pitch * UNIT_BYTES
    patches, borders = cover(feed.window, rows, feed.first_tap, feed.taps)
    copies: list[StridedCopy | StridedFill] = []
    for border in borders:
        place = border.row * columns + first + border.tap * lanes
        copies.append(StridedFill((*border.shape, lanes), place, _strides(border.steps, columns), number))
    for patch in patches:
        place = patch.row * columns + first + patch.tap * lanes
        source = start + patch.source_row * row_bytes, _strides(patch.source_steps, row_bytes)
        copies.append(StridedCopy((*patch.shape, lanes), place, _strides(patch.steps, columns), *source, is_signed))
    return copies


def _strides(steps: tuple[int, int, int], row: int) -> FourAxes:
    return steps[0] * row, steps[1] * row, steps[2] * row, 1


def gather(buffer: np.ndarray, copies: Sequence[StridedCopy | StridedFill], out: np.ndarray) -> None:
    """Make copies.

    Args:
        buffer: the Unified Buffer.
        copies: of a matrix of the shape of `out`.
        out: contiguous, of any dtype that holds a byte and its sign; every number of it that a pass sends is written.
    """
    item = out.itemsize
    for move in copies:
        down, across, deep, along = move.place_strides
        strides = down * item, across * item, deep * item, along * item
        place = np.ndarray(move.shape, out.dtype, out, move.place * item, strides)  # pyright: ignore[reportArgumentType]
        if isinstance(move, StridedFill):
            place[...] = move.number
        else:
            dtype = np.int8 if move.is_signed else np.uint8
            place[...] = np.ndarray(move.shape, dtype, buffer, move.source, move.source_strides)  # pyright: ignore
