"""`Window`: the windows of a convolution or a pool: which rows of the source the rows of its result read.

Idea: `Convolve` and the pools of `Activate` share one geometry, which is in the registers. The address ranges, the time
of a pool and the exact results all follow from this record.

Rule: rows are in position-major order, as `isa/registers.py` defines them. The formulas are those of `Convolve`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from anytpu.chip.isa.registers import Register

Pair = tuple[int, int]
"""Height and width."""


class _Axis(NamedTuple):
    """A window along one axis: source position = result position * stride - pad + tap * dilation."""

    length: int
    kernel: int
    stride: int
    dilation: int
    pad: int

    def inside(self, first: int, last: int, first_tap: int, last_tap: int) -> range:
        """Return the source positions from the first that results `first` to `last` may read to the last."""
        low = first * self.stride - self.pad + first_tap * self.dilation
        high = last * self.stride - self.pad + last_tap * self.dilation
        return range(max(low, 0), min(high, self.length - 1) + 1)

    def taps_inside(self, first: int, last: int) -> list[int]:
        """Return the taps that are inside of the source for some of the results `first` to `last`."""
        step = max(self.dilation, 1)  # that of a window of one tap may be 0
        low = max(0, -((last * self.stride - self.pad) // step))
        high = min(self.kernel, (self.length - 1 + self.pad - first * self.stride) // step + 1)
        return [tap for tap in range(low, high) if self._is_inside(first, last, tap * step - self.pad)]

    def _is_inside(self, first: int, last: int, offset: int) -> bool:
        """Return whether a result reads within the source at an offset from the start of its window."""
        result = max(first, -(offset // self.stride))
        return result <= last and result * self.stride + offset < self.length


@dataclasses.dataclass(frozen=True)
class Window:
    """The geometry registers of a convolution or a pool, each as `Register` defines it."""

    batch: int
    in_height: int
    in_width: int
    out_width: int
    first_row: int
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    dilation_height: int
    dilation_width: int
    pad_top: int
    pad_left: int

    @classmethod
    def of(cls, registers: Mapping[int, int | float]) -> Window:
        """Return the window that the registers describe."""
        return cls(*(int(registers[register]) for register in _REGISTERS))

    @classmethod
    def over(
        cls, batch: int, source: Pair, out_width: int, kernel: Pair = (1, 1), strides: Pair = (1, 1),
        dilation: Pair = (1, 1), pad: Pair = (0, 0),
    ) -> Window:  # fmt: skip
        """Return a window over a source; all sizes but `out_width` are those of height and width."""
        return cls(batch, *source, out_width, 0, *kernel, *strides, *dilation, *pad)

    def settings(self) -> dict[Register, int | float]:
        """Return the registers of the window, without FIRST_ROW."""
        values = zip(_REGISTERS, dataclasses.astuple(self), strict=True)
        return {register: value for register, value in values if register is not Register.FIRST_ROW}

    @property
    def is_plain(self) -> bool:
        """Whether row i of the result reads row i of the source and nothing else."""
        is_still = (self.stride_height, self.stride_width, self.pad_top, self.pad_left) == (1, 1, 0, 0)
        return self.taps == 1 and is_still and self.in_width == self.out_width

    def later(self, rows: int) -> Window:
        """Return the window without the first rows of the result."""
        return dataclasses.replace(self, first_row=self.first_row + rows)

    def group(self, rows: int) -> int:
        """Return how many rows follow each other in the source wherever a tap reads them: examples of one position.

        Args:
            rows: number of result rows, which the group divides, as it does the rows before them and the batch.
        """
        return math.gcd(self.batch, self.first_row, rows)

    @property
    def taps(self) -> int:
        """Number of taps of the window."""
        return self.kernel_height * self.kernel_width

    def row_range(self, rows: int, first_tap: int, stop_tap: int) -> tuple[int, int]:
        """Return the first source row that the window reads, and the row after the last; equal if it reads none.

        Args:
            rows: number of result rows, from `first_row` on.
            first_tap, stop_tap: range of taps, `stop_tap` excluded; taps past the window are ignored.
        """
        (top, bottom), (left, right) = self._positions(rows)
        high, first = divmod(first_tap, self.kernel_width)
        low, last = divmod(min(stop_tap, self.taps) - 1, self.kernel_width)
        if high != low:
            first, last = 0, self.kernel_width - 1
        lines, columns = self._down.inside(top, bottom, high, low), self._across.inside(left, right, first, last)
        if not lines or not columns:
            return 0, 0
        start = lines[0] * self.in_width + columns[0]
        return start * self.batch, (lines[-1] * self.in_width + columns[-1] + 1) * self.batch

    def taps_inside(self, rows: int) -> Iterator[int]:
        """Yield the taps that may be inside of the source for some of the rows; the others cost nothing."""
        lines, columns = self._positions(rows)
        across = self._across.taps_inside(*columns)
        for line in self._down.taps_inside(*lines):
            for column in across:
                yield line * self.kernel_width + column

    @property
    def _down(self) -> _Axis:
        return _Axis(self.in_height, self.kernel_height, self.stride_height, self.dilation_height, self.pad_top)

    @property
    def _across(self) -> _Axis:
        return _Axis(self.in_width, self.kernel_width, self.stride_width, self.dilation_width, self.pad_left)

    def _positions(self, rows: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the first and last line and the first and last column of the result rows."""
        top, left = divmod(self.first_row // self.batch, self.out_width)
        bottom, right = divmod((self.first_row + rows - 1) // self.batch, self.out_width)
        return (top, bottom), (left, right) if top == bottom else (0, self.out_width - 1)


_REGISTERS = tuple(Register[field.name.upper()] for field in dataclasses.fields(Window))


@functools.lru_cache(maxsize=2**12)
def sources(window: Window, rows: int, tap: int) -> tuple[np.ndarray, np.ndarray | slice]:
    """Return where a tap reads for the first rows of a window, in groups of `Window.group(rows)` rows.

    Returns:
        For each group inside of the source, the index of the source's group. Then a mask of these groups; a slice if
        all are inside.
    """
    group = window.group(rows)
    batch, first = window.batch // group, window.first_row // group
    position, example = np.divmod(np.arange(first, first + rows // group), batch)
    line, column = np.divmod(position, window.out_width)
    kernel_line, kernel_column = divmod(tap, window.kernel_width)
    line = line * window.stride_height - window.pad_top + kernel_line * window.dilation_height
    column = column * window.stride_width - window.pad_left + kernel_column * window.dilation_width
    inside = (line >= 0) & (line < window.in_height) & (column >= 0) & (column < window.in_width)
    source = (line * window.in_width + column) * batch + example
    return (source, slice(None)) if inside.all() else (source[inside], inside)
