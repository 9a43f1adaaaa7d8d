"""Products: passes through the array as products of float32 matrices, exact to the last bit.

Idea: float32 holds every integer up to 2**24 exactly. If the magnitudes of all terms of a sum add up to no more, then
every partial sum, in whatever order and with or without fused multiply-adds, is an integer that float32 holds: the BLAS
makes no rounding at all. So the rows of several passes are laid side by side, the tiles one below the other, and one
product does the work of all; where the bound does not hold, the product is cut in two, and the parts are added as
int32.

Rule: the magnitude of a byte is at most 128 signed and 255 unsigned, that of a weight is known: the bound is taken from
the weights that stand there, column by column. At worst (-128 everywhere) it allows 1024 rows signed and 514 unsigned;
for weights of -127 to 127, 1032. Numbers of 16 bits are two products, of their low bytes (unsigned) and of their high
bytes (signed), the second times 256. Sums of the parts are of 32 bits and wrap, as in the accumulators.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from anytpu.chip.design import BLOCK_BYTES, UNIT_BYTES
from anytpu.chip.image import Image
from anytpu.chip.machine.memories import Memories, whole_blocks
from anytpu.chip.machine.steps import Feed, ProductStep
from anytpu.chip.machine.windows import cover, rows_at

EXACT = 2**24
"""Up to here float32 holds every integer."""

KEPT_BYTES = 2**31
"""Of the weights of one image, so many bytes are kept as float32 between runs."""


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Rows `start` to `stop` of the tiles of a step, as one float32 matrix `(stop - start, columns)`."""

    start: int
    stop: int
    matrix: np.ndarray


class Products:
    """Makes the sums of an image's products, and keeps what it prepared for the next run."""

    def __init__(self, image: Image):
        self._weights = whole_blocks(image.weights)
        self._array = image.design.array
        self._parts: dict[int, tuple[Part, ...]] = {}
        self._kept_bytes = 0

    def do(self, memories: Memories, step: ProductStep) -> None:
        """Carry out a step: put its sums into the accumulators, or add them to what stands there."""
        parts = self._prepared(step)
        target = memories.accumulators[step.accumulator : step.accumulator + step.rows]
        if not step.accumulate:
            target[...] = 0
        wide = step.feeds[0].plane.high_offset is not None
        for high in (False, True) if wide else (False,):
            rows = gather(memories.buffer, step, high)
            for part in parts:
                sums = (rows[:, part.start : part.stop] @ part.matrix).astype(np.int32)
                target[:, : sums.shape[1]] += sums * np.int32(256) if high else sums

    def _prepared(self, step: ProductStep) -> tuple[Part, ...]:
        parts = self._parts.get(step.number)
        if parts is None:
            parts = prepare(self._weights, step, self._array)
            size_bytes = sum(part.matrix.nbytes for part in parts)
            if self._kept_bytes + size_bytes <= KEPT_BYTES:
                self._kept_bytes += size_bytes
                self._parts[step.number] = parts
        return parts


def tile_at(weights: np.ndarray, block: int, array: int) -> np.ndarray:
    """Return the tile that starts at a block of the Weight Memory: int8 `(array, array)`, a view."""
    start = block * BLOCK_BYTES
    return weights[start : start + array * array].view(np.int8).reshape(array, array)


def prepare(weights: np.ndarray, step: ProductStep, array: int) -> tuple[Part, ...]:
    """Return the tiles of a step as few float32 matrices, each exact by the rule above."""
    tiles = zip(step.feeds, step.tiles, strict=True)
    stacked = np.concatenate([tile_at(weights, tile, array)[: feed.depth] for feed, tile in tiles])
    columns = np.flatnonzero(stacked.any(0))
    if not len(columns):
        return ()
    stacked = stacked[:, : columns[-1] + 1]
    one = step.feeds[0]
    greatest = 255 if one.unsigned or one.plane.high_offset is not None else 128
    matrix = stacked.astype(np.float32)
    return tuple(Part(start, stop, matrix[start:stop]) for start, stop in _exact(stacked, greatest))


def _exact(stacked: np.ndarray, greatest: int) -> list[tuple[int, int]]:
    """Return ranges of rows within which no column's magnitudes add up to more than EXACT."""
    depth = len(stacked)
    if depth * greatest * 128 <= EXACT:
        return [(0, depth)]
    magnitudes = np.abs(stacked.astype(np.int16)).sum(0, dtype=np.int64)
    if int(magnitudes.max()) * greatest <= EXACT:
        return [(0, depth)]
    half = depth // 2
    return _exact(stacked[:half], greatest) + [(half + a, half + b) for a, b in _exact(stacked[half:], greatest)]


def gather(buffer: np.ndarray, step: ProductStep, high: bool = False) -> np.ndarray:
    """Return what a step sends into the array, float32 `(rows, depth of all passes)`."""
    out = np.empty((step.rows, sum(feed.depth for feed in step.feeds)), np.float32)
    first = 0
    for feed in step.feeds:
        fill_feed(buffer, feed, out, first, high)
        first += feed.depth
    return out


def fill_feed(buffer: np.ndarray, feed: Feed, out: np.ndarray, first: int, high: bool = False) -> None:
    """Write what one pass sends into the array to columns `first` and following of `out`.

    Args:
        buffer: the Unified Buffer.
        feed: what the pass reads.
        out: `(rows, columns)`, of any dtype that holds a byte and its sign.
        first: the column where the lanes of the first tap go.
        high: for numbers of 16 bits: the high bytes, not the low ones.
    """
    plane = feed.plane
    wide = plane.high_offset is not None
    signed = high if wide else not feed.unsigned
    fill = (feed.fill >> 8 if high else feed.fill & 255) if wide else feed.fill
    start = (plane.address + (plane.high_offset or 0 if high else 0)) * UNIT_BYTES
    dtype = np.int8 if signed else np.uint8
    row_bytes, item = plane.pitch * UNIT_BYTES, out.itemsize
    patches, borders = cover(feed.window, len(out), feed.first_tap, feed.taps)
    for border in borders:
        byte = border.row * out.strides[0] + (first + border.tap * feed.lanes) * item
        rows_at(out, out.dtype, byte, out.strides[0], border.shape, border.steps, feed.lanes)[...] = fill
    for patch in patches:
        byte = patch.row * out.strides[0] + (first + patch.tap * feed.lanes) * item
        place = rows_at(out, out.dtype, byte, out.strides[0], patch.shape, patch.steps, feed.lanes)
        source = start + patch.source_row * row_bytes
        place[...] = rows_at(buffer, dtype, source, row_bytes, patch.shape, patch.source_steps, feed.lanes)
