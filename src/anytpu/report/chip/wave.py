"""The systolic wave over a corner of the first tile: what each register of a literal array holds, cycle by cycle.

Idea: 256 by 256 cells are too many to look at. A `SystolicArray` of 8 by 8 multiplies the upper left corner of the
tile, with the numbers of the same lanes, and every number that is drawn is one of its registers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from anytpu.chip.machine.systolic import Snapshot, SystolicArray
from anytpu.report.chip.first_tile import FirstTile

SIZE = 8
"""Rows, columns and vectors that are shown, as far as there are so many."""


@dataclasses.dataclass(frozen=True, eq=False)
class Wave:
    """A run of a small array.

    Attributes:
        first_row: which row of the pass is the first that is shown: where there is something to see.
        weights: int8 `(rows, columns)`, the corner of the tile.
        numbers: int32 `(vectors, rows)`.
        snapshots: the registers after each cycle.
        sums: int32 `(vectors, columns)`, as they left the array.
        expected: the same as a matrix product.
    """

    first_row: int
    weights: np.ndarray
    numbers: np.ndarray
    snapshots: tuple[Snapshot, ...]
    sums: np.ndarray
    expected: np.ndarray

    @property
    def is_right(self) -> bool:
        """Whether what left the array is the matrix product, number by number."""
        return bool((self.sums == self.expected).all())


def wave_of(tile: FirstTile) -> Wave:
    """Return the wave over the corner of a tile."""
    size = min(SIZE, len(tile.weights))
    weights = tile.weights[:size, :size].astype(np.int32)
    first = _first_row(tile.numbers[:, :size], size)
    numbers = tile.numbers[first : first + size, :size]
    snapshots = tuple(SystolicArray(size, size).snapshots(weights, numbers))
    sums = np.zeros((len(numbers), size), np.int32)
    for snapshot in snapshots:
        for vector, column, value in snapshot.leaving:
            sums[vector, column] = value
    return Wave(first, weights, numbers, snapshots, sums, (numbers @ weights).astype(np.int32))


def _first_row(numbers: np.ndarray, size: int) -> int:
    """Return where the first rows start that have the most different numbers: the border of a picture has few."""
    starts = range(0, max(len(numbers) - size, 0) + 1, size)[:512]
    return max(starts, key=lambda start: (len(np.unique(numbers[start : start + size])), -start), default=0)


def scene(wave: Wave) -> dict[str, Any]:
    """Return a wave as what a script reads."""
    done = {}
    for snapshot in wave.snapshots:
        for vector, column, _ in snapshot.leaving:
            done[vector, column] = snapshot.cycle
    vectors, columns = wave.sums.shape
    return {
        "lanes": len(wave.weights),
        "columns": columns,
        "rows": vectors,
        "first_row": wave.first_row,
        "weights": wave.weights.tolist(),
        "inputs": wave.numbers.tolist(),
        "steps": [_step(snapshot) for snapshot in wave.snapshots],
        "results": [
            [{"sum": int(wave.sums[vector, column]), "cycle": done[vector, column]} for column in range(columns)]
            for vector in range(vectors)
        ],
    }


def _step(snapshot: Snapshot) -> dict[str, Any]:
    weights = snapshot.next_weights if snapshot.shifting else snapshot.weights
    return {
        "shifting": snapshot.shifting,
        "weight": weights.ravel().tolist(),
        "row": [None if vector < 0 else vector for vector in snapshot.vectors.ravel().tolist()],
        "input": snapshot.numbers.ravel().tolist(),
        "sum": snapshot.sums.ravel().tolist(),
    }
