"""Layers: products of matrices whose sums become integers at once, shared among the cores.

Idea: a worker gathers some rows, multiplies them with the tiles of all blocks of outputs, and finishes the sums while
they are in its cache. The accumulators are never written: `fusing.py` ensures that nothing reads them.

Rule: exact as in `products.py`. If the sums with their biases are within the bound too, sum + bias is exact in float32.
Then no integer is made before the last step.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from anytpu.chip.image.image import Image
from anytpu.chip.machine import workers
from anytpu.chip.machine.activation import finish, parameters_at
from anytpu.chip.machine.fusing import LayerBlock, LayerStep
from anytpu.chip.machine.gathering import StridedCopy, StridedFill, gather, gather_copies
from anytpu.chip.machine.memories import ChipMemories, whole_blocks
from anytpu.chip.machine.products import (
    EXACT,
    ExactPart,
    exact_parts,
    halves_of,
    magnitudes_of,
    max_magnitude_of,
    tile_at,
)
from anytpu.chip.machine.steps import PassInput

KEPT_BYTES = 2**31
"""Maximum bytes of an image's weights that are kept as float32 between runs."""

GATHERED_NUMBERS = 2**22
"""Maximum number of values that a worker gathers at a time."""

MAX_ROWS, MIN_ROWS, MIN_COLUMNS = 1024, 96, 64
"""Maximum and minimum rows of a work item; minimum columns, if there are too few rows for all workers."""

FINISHED_NUMBERS = 2**17
"""Number of sums that are requantized at a time: they stay in a core's cache."""

BROADCAST_NUMBERS = 2**12
"""Length to which a row of biases or multipliers is repeated: on short rows, NumPy's overhead dominates."""

SMALL_MACS = 4_000_000
"""Multiply-adds below which sharing takes longer than it saves."""

GATHERING_MACS, FINISHING_MACS = 30, 80
"""Multiply-adds that take about as long as gathering one number, and as finishing one sum."""


Copies = tuple[StridedCopy | StridedFill, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class BlockColumns:
    """A block of outputs in the matrix of its layer.

    Attributes:
        start, stop: range of its columns, `stop` excluded. Its outputs beyond have weights of 0 only.
        rest: values of the outputs beyond, before rounding, float32 `(1, lanes)`; 0 for lanes beyond the array.
    """

    start: int
    stop: int
    rest: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class LayerWeights:
    """The weights of a layer, ready.

    Attributes:
        kept: `(feed, lanes)` of each feed with a weight other than 0: its index, and its number of lanes in use.
        parts: the tiles of all blocks, as exact matrices.
        bias, multiplier: for each column, repeated in equal rows, `(rows, columns)`. The bias is float32 if
            `is_direct`, otherwise int32; the multiplier is float32.
        columns: the columns of each block.
        is_direct: whether sums with their biases stay within the exact integers of float32.
    """

    kept: tuple[tuple[int, int], ...]
    parts: tuple[ExactPart, ...]
    bias: np.ndarray
    multiplier: np.ndarray
    columns: tuple[BlockColumns, ...]
    is_direct: bool

    @property
    def depth(self) -> int:
        """Number of inputs of a row."""
        return self.parts[-1].stop if self.parts else 0

    @property
    def width(self) -> int:
        """Number of sums of a row."""
        return self.bias.shape[1]


@dataclasses.dataclass(frozen=True)
class WorkItem:
    """A range of rows and columns of a layer: a worker's unit of work.

    Attributes:
        row, rows: first row and number of rows.
        column, columns: first column and number of columns.
        copies: the copies that gather its rows; for 16-bit numbers those of the low bytes, then of the high bytes.
    """

    row: int
    rows: int
    column: int
    columns: int
    copies: tuple[Copies, ...] = ()


class LayerExecutor:
    """Carries out the layers of an image, and keeps prepared weights for the next run."""

    def __init__(self, image: Image):
        self._weights = whole_blocks(image.weights)
        self._array = image.design.array
        self._matrices: dict[tuple, LayerWeights] = {}
        self._ready: dict[int, tuple[LayerWeights, tuple[WorkItem, ...]]] = {}
        self._kept_bytes = 0

    def do(self, memories: ChipMemories, step: LayerStep) -> None:
        """Carry out a layer."""
        ready = self._ready.get(step.number)
        if ready is None:
            matrix, is_kept = self._matrix(step)
            ready = matrix, tuple(_with_copies(step, matrix))
            if is_kept:
                self._ready[step.number] = ready
        matrix, items = ready
        work = functools.partial(_work, memories, step, matrix)
        if _macs(step.rows, matrix.depth, matrix.width) < SMALL_MACS:
            for item in items:
                work(item)
        else:
            workers.share(items, work)

    def _matrix(self, step: LayerStep) -> tuple[LayerWeights, bool]:
        """Return the weights of a layer, and whether they are kept for later."""
        tiles = tuple((block.tiles, block.activate.parameters, block.activate.target.lanes) for block in step.blocks)
        key = tiles, tuple((feed.lanes, feed.taps, max_magnitude_of(feed)) for feed in step.feeds)
        matrix = self._matrices.get(key)
        if matrix is not None:
            return matrix, True
        matrix = _prepare(self._weights, step.feeds, step.blocks, self._array)
        size_bytes = sum(part.matrix.nbytes for part in matrix.parts)
        if self._kept_bytes + size_bytes > KEPT_BYTES:
            return matrix, False
        self._kept_bytes += size_bytes
        self._matrices[key] = matrix
        return matrix, True


def _macs(rows: int, depth: int, width: int) -> int:
    """Return the multiply-adds of a layer, plus those that take as long as its gathering and finishing."""
    return rows * (depth * width + GATHERING_MACS * depth + FINISHING_MACS * width)


def _with_copies(step: LayerStep, matrix: LayerWeights) -> Iterator[WorkItem]:
    feeds = [dataclasses.replace(step.feeds[number], lanes=lanes) for number, lanes in matrix.kept]
    for item in _work_items(step.rows, matrix.depth, matrix.width):
        later = [feed.later(item.row) for feed in feeds]
        halves = halves_of(step.feeds[0]) if feeds else ()
        copies = tuple(gather_copies(later, item.rows, matrix.depth, high) for high in halves)
        yield dataclasses.replace(item, copies=copies)


def _prepare(weights: np.ndarray, feeds: Sequence[PassInput], blocks: Sequence[LayerBlock], array: int) -> LayerWeights:
    # The weights and parameters of each block, without columns of 0 at its end.
    stacks, columns, biases, multipliers, start = [], [], [], [], 0
    for block in blocks:
        tiles = zip(feeds, block.tiles, strict=True)
        stack = np.concatenate([tile_at(weights, tile, array)[: feed.depth] for feed, tile in tiles])
        lanes = block.activate.target.lanes
        used = np.flatnonzero(stack.any(axis=0))
        width = min(int(used[-1]) + 1 if len(used) else 0, lanes)
        bias, multiplier = parameters_at(weights, block.activate.parameters, array)
        rest = np.zeros((1, lanes - width), np.float32)
        inside = min(lanes, array)
        rest[0, : inside - width] = bias[width:inside].astype(np.float32) * multiplier[width:inside]
        stacks.append(stack[:, :width])
        biases.append(bias[:width])
        multipliers.append(multiplier[:width])
        columns.append(BlockColumns(start, start + width, rest))
        start += width
    # Merge the blocks: feeds and lanes whose weights are all 0 are left out.
    stacked, kept = _trimmed(np.concatenate(stacks, axis=1), feeds)
    bias, max_magnitude = np.concatenate(biases), max_magnitude_of(feeds[0])
    parts = exact_parts(stacked, max_magnitude) if kept else ()
    bound = magnitudes_of(stacked) * max_magnitude + np.abs(bias.astype(np.int64))
    is_direct = len(parts) == 1 and len(halves_of(feeds[0])) == 1 and int(bound.max()) <= EXACT
    bias = _repeated(bias.astype(np.float32 if is_direct else np.int32))
    multiplier = _repeated(np.concatenate(multipliers).astype(np.float32))
    return LayerWeights(kept, parts, bias, multiplier, tuple(columns), is_direct)


def _repeated(row: np.ndarray) -> np.ndarray:
    return np.tile(row, (max(1, BROADCAST_NUMBERS // max(1, len(row))), 1))


def _trimmed(stacked: np.ndarray, feeds: Sequence[PassInput]) -> tuple[np.ndarray, tuple[tuple[int, int], ...]]:
    """Return the weights without feeds, and without last lanes, that are 0; and the feeds and lanes that are left."""
    used = np.asarray(stacked.any(axis=1))
    rows, kept, first = [], [], 0
    for index, feed in enumerate(feeds):
        lanes = np.flatnonzero(np.any(used[first : first + feed.depth].reshape(feed.taps, feed.lanes), axis=0))
        if len(lanes):
            kept.append((index, int(lanes[-1]) + 1))
            every = np.arange(first, first + feed.depth).reshape(feed.taps, feed.lanes)
            rows.append(every[:, : kept[-1][1]].reshape(-1))
        first += feed.depth
    taken = np.concatenate(rows) if rows else np.arange(0)
    return (stacked if len(taken) == len(stacked) else stacked[taken]), tuple(kept)


def _work_items(rows: int, depth: int, width: int) -> list[WorkItem]:
    """Cut a layer into pieces, at least one a worker if it is large enough."""
    maximum = max(MIN_ROWS, min(MAX_ROWS, GATHERED_NUMBERS // max(depth, 1)))
    count = workers.count()
    downs = max(-(-rows // maximum), min(count, rows // MIN_ROWS), 1)
    downs = -(-downs // count) * count if downs > count else downs
    acrosses = max(1, min(-(-count // downs), width // MIN_COLUMNS))
    return [
        WorkItem(row, row_stop - row, column, column_stop - column)
        for row, row_stop in _cuts(rows, downs)
        for column, column_stop in _cuts(width, acrosses)
    ]


def _cuts(length: int, count: int) -> Iterator[tuple[int, int]]:
    for index in range(count):
        yield index * length // count, (index + 1) * length // count


def _work(memories: ChipMemories, step: LayerStep, matrix: LayerWeights, item: WorkItem) -> None:
    totals = _totals(memories, matrix, item)
    across = slice(item.column, item.column + item.columns)
    bias, multiplier = matrix.bias[:, across], matrix.multiplier[:, across]
    block = max(1, FINISHED_NUMBERS // max(1, item.columns))
    with np.errstate(over="ignore"):
        for row in range(0, item.rows, block):
            part = totals[row : row + block]
            _with_row(np.add, part, bias)
            numbers = part if matrix.is_direct else part.astype(np.float32)
            _with_row(np.multiply, numbers, multiplier)
            np.rint(numbers, out=numbers)
            _finish(memories, step, matrix, numbers, item, row)


def _totals(memories: ChipMemories, matrix: LayerWeights, item: WorkItem) -> np.ndarray:
    """Return the sums of a piece, `(rows, columns)`: float32 if the matrix `is_direct`, otherwise int32."""
    sums = workers.scratch("sums", (item.rows, item.columns))
    rows = workers.scratch("rows", (item.rows, matrix.depth))
    if matrix.is_direct:
        gather(memories.buffer, item.copies[0], rows)
        return np.matmul(rows, _across(matrix.parts[0], item), out=sums)
    totals = workers.scratch("totals", sums.shape).view(np.int32)
    more = workers.scratch("more", sums.shape).view(np.int32)
    place = totals
    for high, copies in enumerate(item.copies):
        gather(memories.buffer, copies, rows)
        for part in matrix.parts:
            np.matmul(rows[:, part.start : part.stop], _across(part, item), out=sums)
            place[...] = sums
            if high:
                place <<= 8
            if place is more:
                totals += more
            place = more
    if place is totals:
        totals[...] = 0
    return totals


def _across(part: ExactPart, item: WorkItem) -> np.ndarray:
    return part.matrix[:, item.column : item.column + item.columns]


def _with_row(operation: np.ufunc, array: np.ndarray, row: np.ndarray) -> None:
    """Apply an operation to each row of a contiguous array and `row[0]`, in place; `row` has several equal rows."""
    whole = len(array) // len(row) * len(row)
    several = array[:whole].reshape(whole // len(row), *row.shape)
    operation(several, row, out=several)
    operation(array[whole:], row[0], out=array[whole:])


def _finish(
    memories: ChipMemories, step: LayerStep, matrix: LayerWeights, numbers: np.ndarray, item: WorkItem, first: int
) -> None:
    """Write rows `first` and following of a piece, and the constant outputs of each block beyond its columns."""
    for block, column in zip(step.blocks, matrix.columns, strict=True):
        start, stop = max(column.start, item.column), min(column.stop, item.column + item.columns)
        if start < stop:
            own = numbers[:, start - item.column : stop - item.column]
            finish(memories, block.activate, own, item.row + first, start - column.start)
        if item.column == 0 and column.rest.size:
            rest, lane = np.rint(column.rest), column.stop - column.start
            finish(memories, block.activate, rest, item.row + first, lane, len(numbers))
