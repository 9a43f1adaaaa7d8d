"""im2col: gather the array's inputs from the Unified Buffer into the rows of a matrix, by few strided copies.

Idea: the source and the target of each value depend on registers and addresses only, not on data. So `gather_copies`
computes the copies once per image, and `gather` executes them in each run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from anytpu.chip.isa.design import UNIT_BYTES
from anytpu.chip.machine.steps import PassInput
from anytpu.chip.machine.windows import cover

FourAxes = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class StridedCopy:
    """A strided copy from bytes of the Unified Buffer to elements of a matrix, along four axes.

    Attributes:
        shape: number of lines, columns, examples and lanes.
        target, target_strides: offset of the first target element, and the strides, in elements of the matrix.
        source, source_strides: offset of the first source byte, and the strides, in bytes.
        is_signed: whether the bytes are int8; otherwise uint8.
    """

    shape: FourAxes
    target: int
    target_strides: FourAxes
    source: int
    source_strides: FourAxes
    is_signed: bool


@dataclasses.dataclass(frozen=True)
class StridedFill:
    """A constant for elements of a matrix; attributes as in `StridedCopy`."""

    shape: FourAxes
    target: int
    target_strides: FourAxes
    number: int


def gather_copies(
    feeds: Sequence[PassInput], rows: int, columns: int, high: bool = False
) -> tuple[StridedCopy | StridedFill, ...]:
    """Return the copies that fill a matrix `(rows, columns)` with the inputs of passes, concatenated by columns.

    Args:
        feeds: the input of each pass; its first `rows` rows are used.
        rows, columns: size of the matrix.
        high: whether to take the high bytes of 16-bit numbers; otherwise the low bytes.
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
        target = border.row * columns + first + border.tap * lanes
        copies.append(StridedFill((*border.shape, lanes), target, _strides(border.steps, columns), number))
    for patch in patches:
        target = patch.row * columns + first + patch.tap * lanes
        source = start + patch.source_row * row_bytes, _strides(patch.source_steps, row_bytes)
        copies.append(StridedCopy((*patch.shape, lanes), target, _strides(patch.steps, columns), *source, is_signed))
    return copies


def _strides(steps: tuple[int, int, int], row: int) -> FourAxes:
    return steps[0] * row, steps[1] * row, steps[2] * row, 1


def gather(buffer: np.ndarray, copies: Sequence[StridedCopy | StridedFill], out: np.ndarray) -> None:
    """Execute copies.

    Args:
        buffer: the Unified Buffer.
        copies: the copies, for a matrix of the shape of `out`.
        out: the matrix, contiguous, of a dtype that holds -128 to 255. Every element that is an input of a pass is
            written.
    """
    item = out.itemsize
    for move in copies:
        down, across, deep, along = move.target_strides
        strides = down * item, across * item, deep * item, along * item
        target = np.ndarray(move.shape, out.dtype, out, move.target * item, strides)  # pyright: ignore[reportArgumentType]
        if isinstance(move, StridedFill):
            target[...] = move.number
        else:
            dtype = np.int8 if move.is_signed else np.uint8
            target[...] = np.ndarray(move.shape, dtype, buffer, move.source, move.source_strides)  # pyright: ignore
