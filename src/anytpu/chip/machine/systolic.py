"""`SystolicArray`: the matrix unit, simulated cycle by cycle at the register level.

Idea: the array is weight stationary: every cell holds a weight. Activations enter at the left edge and move one cell to
the right each cycle. Partial sums start as 0 at the top and move one cell down. In each cycle, a cell multiplies its
weight by its activation and adds the partial sum from above. Row i receives its activation i cycles after row 0, so a
vector enters as a diagonal wavefront. A partial sum therefore meets the activations of one vector on its way down, and
leaves at the bottom as a complete dot product.

Rule: all registers are updated at the same clock edge, from the values of the previous cycle. A cell reads only
adjacent cells. The array serves for teaching, and as the reference for the fast products.

Cycles: the tile is shifted in from the top, in `rows` cycles, into a second register of each cell. It takes effect cell
by cell with the wavefront. Vector n enters row 0 in cycle n of the stream, counted from 0. Its sum of column j is
complete at the end of cycle n + (rows - 1) + j. So a batch streams in rows + columns + batch - 2 cycles.

Source: Jouppi et al. 2017, section 2 and figure 4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from anytpu.errors import ChipError


@dataclasses.dataclass(frozen=True, eq=False)
class ArraySnapshot:
    """All registers of an array at the end of a cycle; each an array `(rows, columns)`.

    Attributes:
        cycle: index of the cycle, from 0; the shift of the weights comes first.
        shifting: whether the tile is being shifted in; otherwise vectors stream.
        next_weights: the registers that the tile is shifted into.
        weights: the weights in effect.
        numbers: the numbers that came from the left.
        vectors: index of the vector that the number belongs to, from 0; -1 for no number.
        sums: the sums so far.
        leaving: `(vector, column, sum)` of each sum that is complete.
    """

    cycle: int
    shifting: bool
    next_weights: np.ndarray
    weights: np.ndarray
    numbers: np.ndarray
    vectors: np.ndarray
    sums: np.ndarray
    leaving: tuple[tuple[int, int, int], ...]


class SystolicArray:
    """A weight-stationary array of multiply-accumulate cells.

    Attributes:
        rows, columns: number of rows and columns of cells.
        cycles: number of cycles since the array was constructed.
        next_weights, weights, numbers, sums: the registers, int32 `(rows, columns)`.
        vectors: index of the vector that the number of a cell belongs to, int32 `(rows, columns)`; -1 for no number.

    Example:
        >>> array = SystolicArray(2, 3)
        >>> array.multiply(np.array([[1, 2, 3], [4, 5, 6]]), np.array([[1, 10]]))
        array([[41, 52, 63]], dtype=int32)
        >>> array.cycles  # 2 to shift the tile in, 2 + 3 + 1 - 2 to stream
        6
    """

    def __init__(self, rows: int, columns: int):
        if min(rows, columns) < 1:
            raise ChipError(f"A systolic array needs at least one row and one column, not {rows} by {columns}.")
        self.rows, self.columns, self.cycles = rows, columns, 0
        self.next_weights, self.weights, self.numbers, self.sums = np.zeros((4, rows, columns), np.int32)
        self.vectors = np.full((rows, columns), -1, np.int32)
        self._slant = np.arange(rows)

    def multiply(self, tile: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Shift a tile in, stream vectors through, and return their products with it, int32, wrapping.

        Args:
            tile: `(rows, columns)`, integers.
            numbers: `(batch, rows)`, integers, each vector a row.

        Returns:
            `(batch, columns)`.
        """
        result = np.zeros((len(numbers), self.columns), np.int32)
        for _ in self._shift(tile):
            pass
        for _ in self._stream(numbers):
            vectors = self.vectors[-1]
            complete = np.flatnonzero(vectors >= 0)
            result[vectors[complete], complete] = self.sums[-1, complete]
        return result

    def snapshots(self, tile: np.ndarray, numbers: np.ndarray) -> Iterator[ArraySnapshot]:
        """Multiply as `multiply` does, and yield the registers after each cycle of the shift, then of the stream."""
        start = self.cycles
        for _ in self._shift(tile):
            yield self._snapshot(start, True)
        for _ in self._stream(numbers):
            yield self._snapshot(start, False)

    def _shift(self, tile: np.ndarray) -> Iterator[None]:
        if tile.shape != (self.rows, self.columns):
            raise ChipError(f"A tile of this array is of shape {(self.rows, self.columns)}, not {tile.shape}.")
        nothing = np.zeros(self.rows, np.int32)
        for row in tile[::-1]:  # the last row enters first, and is shifted to the bottom
            self._tick(nothing, nothing - 1, row)
            yield

    def _stream(self, numbers: np.ndarray) -> Iterator[None]:
        if numbers.ndim != 2 or numbers.shape[1] != self.rows:
            raise ChipError(f"Vectors of this array are of shape (batch, {self.rows}), not {numbers.shape}.")
        for cycle in range(self.rows + self.columns + len(numbers) - 2 if len(numbers) else 0):
            vectors = cycle - self._slant
            vectors = np.where((vectors >= 0) & (vectors < len(numbers)), vectors, -1)
            entering = np.where(vectors >= 0, numbers[vectors, self._slant], 0)
            self._tick(entering, vectors)
            yield

    def _tick(self, entering: np.ndarray, vectors: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Advance one cycle: numbers enter at the left, and optionally a row of weights at the top."""
        self.cycles += 1
        if weights is not None:
            self.next_weights[1:] = self.next_weights[:-1].copy()
            self.next_weights[0] = weights
        self.numbers[:, 1:] = self.numbers[:, :-1].copy()
        self.numbers[:, 0] = entering
        self.vectors[:, 1:] = self.vectors[:, :-1].copy()
        self.vectors[:, 0] = vectors
        # Vector 0 is the front of the wave: a cell switches to its new weight when vector 0 reaches it.
        np.copyto(self.weights, self.next_weights, where=self.vectors == 0)
        self.sums[1:] = self.sums[:-1].copy()
        self.sums[0] = 0
        self.sums += self.weights * self.numbers

    def _snapshot(self, start: int, shifting: bool) -> ArraySnapshot:
        leaving = tuple(
            (int(vector), column, int(self.sums[-1, column]))
            for column, vector in enumerate(self.vectors[-1])
            if vector >= 0
        )
        registers = ("next_weights", "weights", "numbers", "vectors", "sums")
        copies = {name: getattr(self, name).copy() for name in registers}
        return ArraySnapshot(self.cycles - start - 1, shifting, leaving=leaving, **copies)
