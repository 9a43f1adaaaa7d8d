"""The systolic wave over a corner of the first tile: the registers of a simulated array, cycle by cycle.

Idea: 256 by 256 cells are too many to show. A `SystolicArray` of 8 by 8 multiplies the upper left corner of the tile
with the activations of the same lanes. Every number shown is one of its registers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from anytpu.chip.machine.systolic import Snapshot, SystolicArray
from anytpu.report.chip.first_tile import FirstTile

SIZE = 8
"""Maximum number of rows, columns and vectors shown."""


@dataclasses.dataclass(frozen=True, eq=False)
class Wave:
    """A run of a small array.

    Attributes:
        first_row: index of the first shown row of the pass, chosen for varied values.
        weights: corner of the tile; int32 `(rows, columns)`.
        numbers: activations; int32 `(vectors, rows)`.
        snapshots: registers after each cycle.
        sums: sums that left the array; int32 `(vectors, columns)`.
        expected: the matrix product for comparison; int32 `(vectors, columns)`.
    """

    first_row: int
    weights: np.ndarray
    numbers: np.ndarray
    snapshots: tuple[Snapshot, ...]
    sums: np.ndarray
    expected: np.ndarray

    @property
    def is_right(self) -> bool:
        """Whether the sums that left the array equal the matrix product."""
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
    """Return the start of the rows with the most distinct values; the border of an image has few."""
    starts = range(0, max(len(numbers) - size, 0) + 1, size)[:512]
    return max(starts, key=lambda start: (len(np.unique(numbers[start : start + size])), -start), default=0)


def scene(wave: Wave) -> dict[str, Any]:
    """Return a wave as the script's data."""
    left_at = {}
    for snapshot in wave.snapshots:
        for vector, column, _ in snapshot.leaving:
            left_at[vector, column] = snapshot.cycle
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
            [{"sum": int(wave.sums[vector, column]), "cycle": left_at[vector, column]} for column in range(columns)]
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
