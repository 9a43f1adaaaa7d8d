"""Products: passes through the array as products of float32 matrices, exact to the last bit.

Idea: float32 holds every integer up to 2**24 exactly. Let the magnitudes of all terms of a sum add up to at most 2**24.
Then float32 holds every partial sum, in any order and with or without fused multiply-adds, and the BLAS never rounds.
So the rows of several passes are concatenated, their tiles are stacked, and one product computes all passes. If the
bound does not hold, the product is split in two, and the parts are added as int32.

Rule: the magnitude of a byte is at most 128 signed and 255 unsigned. The weights are known, so the bound uses the sum
of their magnitudes in each column. At worst (-128 everywhere) it allows 1024 rows signed and 514 unsigned; for weights
of -127 to 127, 1032 signed. Numbers of 16 bits take two products: of their low bytes (unsigned) and of their high bytes
(signed), the second times 256. Sums of the parts are of 32 bits and wrap, as in the accumulators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from anytpu.chip.isa.design import BLOCK_BYTES
from anytpu.chip.machine.gathering import gather, gather_copies
from anytpu.chip.machine.memories import ChipMemories
from anytpu.chip.machine.steps import PassInput, ProductStep

EXACT = 2**24
"""Maximum magnitude up to which float32 represents every integer."""

GATHERED_NUMBERS = 2**22
"""Maximum number of values gathered at a time; a single pass may have more."""


@dataclasses.dataclass(frozen=True, eq=False)
class ExactPart:
    """Rows `start` to `stop`, excluded, of stacked tiles, as float32 `(stop - start, columns)`."""

    start: int
    stop: int
    matrix: np.ndarray


def multiply(memories: ChipMemories, step: ProductStep) -> None:
    """Write the sums of a product to the accumulators, or add them to the sums there."""
    array = memories.accumulators.shape[1]
    target = memories.accumulators[step.accumulator : step.accumulator + step.rows]
    if not step.accumulate:
        target[...] = 0
    for feeds, blocks in _passes(step):
        # 1. Stack the tiles of several passes, split so that float32 sums are exact.
        tiles = zip(feeds, blocks, strict=True)
        stacked = np.concatenate([tile_at(memories.weights, tile, array)[: feed.depth] for feed, tile in tiles])
        parts = exact_parts(stacked, max_magnitude_of(feeds[0]))
        # 2. Gather the matching inputs (im2col), and add their products to the int32 sums.
        rows = np.empty((step.rows, parts[-1].stop), np.float32)
        for high in halves_of(feeds[0]):
            gather(memories.buffer, gather_copies(feeds, *rows.shape, high), rows)
            for part in parts:
                sums = (rows[:, part.start : part.stop] @ part.matrix).astype(np.int32)
                target += sums * np.int32(256) if high else sums


def _passes(step: ProductStep) -> Iterator[tuple[Sequence[PassInput], Sequence[int]]]:
    """Yield the feeds and tiles of a product, as many at a time as `GATHERED_NUMBERS` allows."""
    first, depth, maximum = 0, 0, GATHERED_NUMBERS // step.rows
    for index, feed in enumerate(step.feeds):
        if first < index and depth + feed.depth > maximum:
            yield step.feeds[first:index], step.tiles[first:index]
            first, depth = index, 0
        depth += feed.depth
    yield step.feeds[first:], step.tiles[first:]


def tile_at(weights: np.ndarray, block: int, array: int) -> np.ndarray:
    """Return the tile that starts at a block of the Weight Memory: int8 `(array, array)`, a view."""
    start = block * BLOCK_BYTES
    return weights[start : start + array * array].view(np.int8).reshape(array, array)


def max_magnitude_of(feed: PassInput) -> int:
    """Return the maximum magnitude of a byte that goes into the array."""
    return 255 if feed.unsigned or feed.plane.high_offset is not None else 128


def halves_of(feed: PassInput) -> tuple[bool, ...]:
    """Return for each byte of a number, the low byte first, whether it is the high byte of 16 bits."""
    return (False,) if feed.plane.high_offset is None else (False, True)


def exact_parts(stacked: np.ndarray, max_magnitude: int) -> tuple[ExactPart, ...]:
    """Split weights, int8 `(depth, columns)`, into few float32 matrices, each within the bound.

    Args:
        stacked: stacked tiles.
        max_magnitude: maximum magnitude of the numbers that they are multiplied with.
    """
    matrix = stacked.astype(np.float32)
    return tuple(ExactPart(start, stop, matrix[start:stop]) for start, stop in _ranges(stacked, max_magnitude, 0))


def magnitudes_of(stacked: np.ndarray) -> np.ndarray:
    """Return the sum of the magnitudes of each column of weights, int64 `(columns,)`."""
    return np.abs(stacked.astype(np.int16)).sum(0, dtype=np.int64)


def _ranges(stacked: np.ndarray, max_magnitude: int, first: int) -> list[tuple[int, int]]:
    depth = len(stacked)
    if depth * max_magnitude * 128 <= EXACT or magnitudes_of(stacked).max(initial=0) * max_magnitude <= EXACT:
        return [(first, first + depth)]
    half = depth // 2
    return _ranges(stacked[:half], max_magnitude, first) + _ranges(stacked[half:], max_magnitude, first + half)
