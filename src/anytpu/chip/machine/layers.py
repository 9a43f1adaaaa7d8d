"""Layers: products of matrices whose sums become integers at once, shared among the cores.

Idea: a worker gathers some rows, multiplies them with the tiles of all blocks of outputs, and finishes the sums while
they are in its cache. The accumulators are never written: `fusing.py` has made sure that nobody looks.

Rule: exact as in `products.py`. Where the bias too is within the bound, sum + bias is exact in float32, and no integer
is made before the last step.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from anytpu.chip.design import BLOCK_BYTES
from anytpu.chip.image import Image
from anytpu.chip.machine import workers
from anytpu.chip.machine.activation import finish
from anytpu.chip.machine.fusing import Block, LayerStep
from anytpu.chip.machine.memories import Memories, whole_blocks
from anytpu.chip.machine.products import (
    EXACT,
    Part,
    exact_parts,
    gather,
    greatest_of,
    halves_of,
    magnitudes_of,
    tile_at,
)
from anytpu.chip.machine.steps import Feed

KEPT_BYTES = 2**31
"""Of the weights of one image, so many bytes are kept as float32 between runs."""

GATHERED_NUMBERS = 2**21
"""Numbers that a worker gathers at a time."""

MOST_ROWS, LEAST_ROWS, LEAST_COLUMNS = 512, 96, 64
"""Rows that a worker takes at a time, and columns, where there are too few rows for all."""

FINISHED_NUMBERS = 2**15
"""Sums that are finished at a time: with all that it takes, they stay in a core's cache."""

SMALL_MACS = 4_000_000
"""Below it, sharing takes longer than it saves."""


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """A block of outputs in the matrix of its layer.

    Attributes:
        start, stop: its columns. Its outputs beyond have weights of 0 only.
        bias: int32 `(lanes,)`, of all its outputs, as many as a row of the array has.
        multiplier: float32 `(lanes,)`.
    """

    start: int
    stop: int
    bias: np.ndarray
    multiplier: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """The weights of a layer, ready.

    Attributes:
        kept: which feeds have any weight that is not 0, and how many lanes of them do.
        parts: the tiles of all blocks, as exact matrices.
        columns: block by block.
        is_direct: sums with their biases stay within the exact integers of float32.
    """

    kept: tuple[tuple[int, int], ...]
    parts: tuple[Part, ...]
    columns: tuple[Column, ...]
    is_direct: bool

    @property
    def depth(self) -> int:
        """Numbers of a row that goes in."""
        return self.parts[-1].stop if self.parts else 0

    @property
    def width(self) -> int:
        """Sums of a row."""
        return self.columns[-1].stop


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some rows, and some columns, of a layer: what a worker takes at a time."""

    row: int
    rows: int
    column: int
    columns: int


class Layers:
    """Carries out the layers of an image, and keeps what it prepared for the next run."""

    def __init__(self, image: Image):
        self._weights = whole_blocks(image.weights)
        self._array = image.design.array
        self._matrices: dict[tuple, Matrix] = {}
        self._kept_bytes = 0

    def do(self, memories: Memories, step: LayerStep) -> None:
        """Carry out a layer."""
        matrix = self._matrix(step)
        feeds = [dataclasses.replace(step.feeds[number], lanes=lanes) for number, lanes in matrix.kept]
        pieces = _pieces(step.rows, matrix.depth, matrix.width)
        work = functools.partial(_work, memories, step, matrix, feeds)
        if step.rows * matrix.depth * matrix.width < SMALL_MACS:
            for piece in pieces:
                work(piece)
        else:
            workers.share(pieces, work)

    def _matrix(self, step: LayerStep) -> Matrix:
        tiles = tuple((block.tiles, block.activate.parameters) for block in step.blocks)
        key = tiles, tuple((feed.lanes, feed.taps, greatest_of(feed)) for feed in step.feeds)
        matrix = self._matrices.get(key)
        if matrix is None:
            matrix = _prepare(self._weights, step.feeds, step.blocks, self._array)
            size_bytes = sum(part.matrix.nbytes for part in matrix.parts)
            if self._kept_bytes + size_bytes <= KEPT_BYTES:
                self._kept_bytes += size_bytes
                self._matrices[key] = matrix
        return matrix


def _prepare(weights: np.ndarray, feeds: Sequence[Feed], blocks: Sequence[Block], array: int) -> Matrix:
    stacks, columns, start = [], [], 0
    for block in blocks:
        tiles = zip(feeds, block.tiles, strict=True)
        stack = np.concatenate([tile_at(weights, tile, array)[: feed.depth] for feed, tile in tiles])
        used = np.flatnonzero(stack.any(0))
        stop = start + (int(used[-1]) + 1 if len(used) else 0)
        stacks.append(stack[:, : stop - start])
        first = block.activate.parameters * BLOCK_BYTES
        numbers = weights[first : first + 8 * array].reshape(2, 4 * array)
        columns.append(Column(start, stop, numbers[0].view("<i4"), numbers[1].view("<f4")))
        start = stop
    stacked, kept = _trimmed(np.concatenate(stacks, axis=1), feeds)
    greatest = greatest_of(feeds[0])
    parts = exact_parts(stacked, greatest) if kept else ()
    bias = np.concatenate([np.abs(one.bias[: one.stop - one.start].astype(np.int64)) for one in columns])
    within = (magnitudes_of(stacked) * greatest + bias).max(initial=0) <= EXACT
    is_direct = bool(within) and len(parts) <= 1 and len(halves_of(feeds[0])) == 1
    return Matrix(kept, parts, tuple(columns), is_direct)


def _trimmed(stacked: np.ndarray, feeds: Sequence[Feed]) -> tuple[np.ndarray, tuple[tuple[int, int], ...]]:
    """Return the weights without feeds, and without last lanes, that are 0; and which feeds and lanes are left."""
    used = np.asarray(stacked.any(axis=1))
    rows, kept, first = [], [], 0
    for number, feed in enumerate(feeds):
        lanes = np.flatnonzero(np.any(used[first : first + feed.depth].reshape(feed.taps, feed.lanes), axis=0))
        if len(lanes):
            kept.append((number, int(lanes[-1]) + 1))
            every = np.arange(first, first + feed.depth).reshape(feed.taps, feed.lanes)
            rows.append(every[:, : kept[-1][1]].reshape(-1))
        first += feed.depth
    taken = np.concatenate(rows) if rows else np.arange(0)
    return (stacked if len(taken) == len(stacked) else stacked[taken]), tuple(kept)


def _pieces(rows: int, depth: int, width: int) -> list[Piece]:
    """Cut a layer into pieces, at least one a worker if it is large enough."""
    most = max(LEAST_ROWS, min(MOST_ROWS, GATHERED_NUMBERS // max(depth, 1)))
    count = workers.count()
    downs = max(-(-rows // most), min(count, rows // LEAST_ROWS), 1)
    downs = -(-downs // count) * count if downs > count else downs
    acrosses = max(1, min(-(-count // downs), width // LEAST_COLUMNS))
    return [
        Piece(row, row_stop - row, column, column_stop - column)
        for row, row_stop in _cuts(rows, downs)
        for column, column_stop in _cuts(width, acrosses)
    ]


def _cuts(length: int, count: int) -> Iterator[tuple[int, int]]:
    for number in range(count):
        yield number * length // count, (number + 1) * length // count


def _work(memories: Memories, step: LayerStep, matrix: Matrix, feeds: Sequence[Feed], piece: Piece) -> None:
    totals = _totals(memories, matrix, feeds, piece)
    with np.errstate(over="ignore"):
        for block, column in zip(step.blocks, matrix.columns, strict=True):
            first, stop = max(column.start, piece.column), min(column.stop, piece.column + piece.columns)
            if first < stop:
                _finish_block(memories, block, column, totals, piece, first, stop)
            if piece.column == 0:
                _finish_rest(memories, block, column, piece)


def _totals(memories: Memories, matrix: Matrix, feeds: Sequence[Feed], piece: Piece) -> np.ndarray:
    """Return the sums of a piece, `(rows, columns)`: float32 where that is direct, else int32."""
    feeds = [feed.later(piece.row) for feed in feeds]
    sums = workers.scratch("sums", (piece.rows, piece.columns))
    rows = workers.scratch("rows", (piece.rows, matrix.depth))
    if matrix.is_direct and matrix.parts:
        gather(memories.buffer, feeds, rows)
        return np.matmul(rows, _across(matrix.parts[0], piece), out=sums)
    totals = workers.scratch("totals", sums.shape).view(np.int32)
    totals[...] = 0
    for high in halves_of(feeds[0]) if feeds else ():
        gather(memories.buffer, feeds, rows, high)
        for part in matrix.parts:
            np.matmul(rows[:, part.start : part.stop], _across(part, piece), out=sums)
            more = sums.astype(np.int32)
            totals += more * np.int32(256) if high else more
    return totals


def _across(part: Part, piece: Piece) -> np.ndarray:
    return part.matrix[:, piece.column : piece.column + piece.columns]


def _finish_block(
    memories: Memories, block: Block, column: Column, totals: np.ndarray, piece: Piece, first: int, stop: int
) -> None:
    """Finish the sums of columns `first` to `stop` of the matrix, which all belong to one block."""
    lane = first - column.start
    lanes = min(stop - first, block.activate.target.lanes - lane)
    if lanes <= 0:
        return
    bias, multiplier = column.bias[lane : lane + lanes], column.multiplier[lane : lane + lanes]
    bias = bias.astype(totals.dtype)
    step = max(1, FINISHED_NUMBERS // lanes)
    left = first - piece.column
    for row in range(0, piece.rows, step):
        part = totals[row : row + step, left : left + lanes]
        part += bias
        numbers = part if part.dtype == np.float32 else part.astype(np.float32)
        numbers *= multiplier
        finish(memories, block.activate, numbers, piece.row + row, lane)


def _finish_rest(memories: Memories, block: Block, column: Column, piece: Piece) -> None:
    """Write the outputs whose weights are all 0, and the lanes that the array does not have."""
    lane, lanes = column.stop - column.start, block.activate.target.lanes
    if lane >= lanes:
        return
    numbers = np.zeros((1, lanes - lane), np.float32)
    inside = min(lanes, len(column.bias)) - lane
    np.multiply(
        column.bias[lane:][:inside].astype(np.float32), column.multiplier[lane:][:inside], out=numbers[0, :inside]
    )
    finish(memories, block.activate, numbers, piece.row, lane, piece.rows)
