"""Windows: the mapping from rows of a plane to rows of a result, as a few strided copies for each tap.

Idea: consecutive rows in position-major order (line, column, example) form at most five boxes. These are the rest of a
position, the rest of a line, whole lines, the start of a line, and the start of a position. For one box and one tap,
the part inside the source is a box again. Its rows are evenly spaced along each of the three axes; so one strided copy
moves it.

Rule: `Patch` and `Border` count rows, so they do not depend on the plane's address or the width of a row.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from anytpu.chip.machine.steps import WindowRegisters

Pair = tuple[int, int]
Triple = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Patch:
    """Rows of a tap that are inside of the source.

    Attributes:
        tap: index of the tap, from the first requested tap.
        shape: number of lines, columns and examples.
        row, steps: first row of the result, and distance in rows along each axis of `shape`.
        source_row, source_steps: the same in the source.
    """

    tap: int
    shape: Triple
    row: int
    steps: Triple
    source_row: int
    source_steps: Triple

    @property
    def source_span(self) -> int:
        """Distance from the first row to the last in the source, in rows."""
        return sum((count - 1) * step for count, step in zip(self.shape, self.source_steps, strict=True))


@dataclasses.dataclass(frozen=True)
class Border:
    """Rows of a tap that are outside of the source."""

    tap: int
    shape: Triple
    row: int
    steps: Triple


@dataclasses.dataclass(frozen=True)
class _ResultBox:
    """Rows of the result from `row` on: lines, columns and examples from `first` up to `stop`."""

    row: int
    first: Triple
    stop: Triple

    @property
    def steps(self) -> Triple:
        columns, examples = (self.stop[axis] - self.first[axis] for axis in (1, 2))
        return columns * examples, examples, 1

    def row_of(self, line: int, column: int) -> int:
        """Return the row of the result of the first example at a position of the box."""
        return self.row + (line - self.first[0]) * self.steps[0] + (column - self.first[1]) * self.steps[1]


def _boxes(window: WindowRegisters, rows: int) -> Iterator[_ResultBox]:
    batch, width = window.batch, window.out_width
    row, stop = window.first_row, window.first_row + rows
    while row < stop:
        left = stop - row
        position, n = divmod(row, batch)
        line, column = divmod(position, width)
        if n or left < batch:
            taken = min(batch - n, left)
            box = (line, column, n), (line + 1, column + 1, n + taken)
        elif column or left < batch * width:
            columns = min(width - column, left // batch)
            taken = columns * batch
            box = (line, column, 0), (line + 1, column + columns, batch)
        else:
            lines = left // (batch * width)
            taken = lines * width * batch
            box = (line, 0, 0), (line + lines, width, batch)
        yield _ResultBox(row - window.first_row, *box)
        row += taken


def _inside(first: int, stop: int, stride: int, offset: int, length: int) -> tuple[int, int]:
    """Return which of the positions from `first` up to `stop` read `position * stride + offset` within `length`."""
    low = max(first, -(offset // stride))
    high = min(stop, (length - 1 - offset) // stride + 1)
    return min(low, stop), max(min(low, stop), high)


@functools.lru_cache(maxsize=2**12)
def cover(
    window: WindowRegisters | None, rows: int, first_tap: int, taps: int
) -> tuple[tuple[Patch, ...], tuple[Border, ...]]:
    """Return the copies that gather `taps` taps of `rows` rows, and the rows outside of the source.

    Args:
        window: the geometry; None: row i of the result is row i of the source.
        rows: number of rows of the result, from the window's first row on.
        first_tap: index of the first tap, in row-major order of the kernel.
        taps: number of taps.
    """
    if window is None:
        shape, steps = (1, 1, rows), (rows, rows, 1)
        return (Patch(0, shape, 0, steps, 0, steps),), ()
    patches, borders = [], []
    boxes = tuple(_boxes(window, rows))
    for tap in range(taps):
        kh, kw = divmod(first_tap + tap, window.kernel_width)
        top = kh * window.dilation_height - window.pad_top
        left = kw * window.dilation_width - window.pad_left
        for box in boxes:
            _cover_box(window, box, tap, (top, left), patches, borders)
    return tuple(patches), tuple(borders)


def _cover_box(
    window: WindowRegisters, box: _ResultBox, tap: int, offset: tuple[int, int], patches: list, borders: list
) -> None:
    (line, column, n), (line_stop, column_stop, n_stop) = box.first, box.stop
    top, bottom = _inside(line, line_stop, window.stride_height, offset[0], window.in_height)
    left, right = _inside(column, column_stop, window.stride_width, offset[1], window.in_width)
    if right == left or bottom == top:
        top = bottom = line
        left = right = column
    else:
        patches.append(_patch(window, box, tap, offset, (top, bottom), (left, right)))
    for lines, columns in (
        ((line, top), (column, column_stop)),
        ((bottom, line_stop), (column, column_stop)),
        ((top, bottom), (column, left)),
        ((top, bottom), (right, column_stop)),
    ):
        shape = lines[1] - lines[0], columns[1] - columns[0], n_stop - n
        if min(shape) > 0:
            borders.append(Border(tap, shape, box.row_of(lines[0], columns[0]), box.steps))


def _patch(
    window: WindowRegisters, box: _ResultBox, tap: int, offset: tuple[int, int], lines: Pair, columns: Pair
) -> Patch:
    h = lines[0] * window.stride_height + offset[0]
    w = columns[0] * window.stride_width + offset[1]
    line_rows = window.in_width * window.batch
    return Patch(
        tap,
        (lines[1] - lines[0], columns[1] - columns[0], box.stop[2] - box.first[2]),
        box.row_of(lines[0], columns[0]),
        box.steps,
        h * line_rows + w * window.batch + box.first[2],
        (window.stride_height * line_rows, window.stride_width * window.batch, 1),
    )


@functools.lru_cache(maxsize=2**12)
def inside(window: WindowRegisters, rows: int) -> tuple[Patch, ...]:
    """Return the copies of `cover` for all taps of a window; taps that are never inside of the source cost nothing.

    Args:
        window: the geometry.
        rows: rows of the result, from the window's first row on.
    """
    patches = []
    for box in _boxes(window, rows):
        down = _AxisWindow(window.kernel_height, window.stride_height, window.dilation_height, window.pad_top)
        across = _AxisWindow(window.kernel_width, window.stride_width, window.dilation_width, window.pad_left)
        columns = list(across.taps_inside(box.first[1], box.stop[1], window.in_width))
        for kh, top, lines in down.taps_inside(box.first[0], box.stop[0], window.in_height):
            for kw, left, across_columns in columns:
                tap = kh * window.kernel_width + kw
                patches.append(_patch(window, box, tap, (top, left), lines, across_columns))
    return tuple(patches)


class _AxisWindow(NamedTuple):
    """A window along one axis."""

    kernel: int
    stride: int
    dilation: int
    pad: int

    def taps_inside(self, first: int, stop: int, length: int) -> Iterator[tuple[int, int, Pair]]:
        """Yield the taps that are inside of the source for some of the positions from `first` up to `stop`.

        Returns:
            The tap, its offset from the start of its window without padding, and the range of positions.
        """
        step = max(self.dilation, 1)  # that of a window of one tap may be 0
        low = max(0, -(((stop - 1) * self.stride - self.pad) // step))
        high = min(self.kernel, (length - 1 + self.pad - first * self.stride) // step + 1)
        for tap in range(low, high):
            offset = tap * step - self.pad
            start, end = _inside(first, stop, self.stride, offset, length)
            if start < end:
                yield tap, offset, (start, end)


def rows_at(
    memory: np.ndarray, dtype: np.dtype | type, byte: int, row_bytes: int, shape: Triple, steps: Triple, lanes: int
) -> np.ndarray:
    """Return a view `(*shape, lanes)` of a contiguous array: rows in even steps along three axes.

    Args:
        memory: any contiguous array.
        dtype: dtype that its bytes are read as.
        byte: offset of the first row, in bytes.
        row_bytes: distance between adjacent rows, in bytes.
        shape, steps: as in `Patch`.
        lanes: number of values of each row.
    """
    dtype = np.dtype(dtype)
    strides = (*(step * row_bytes for step in steps), dtype.itemsize)
    return np.ndarray((*shape, lanes), dtype, memory, byte, strides)  # pyright: ignore[reportArgumentType]
