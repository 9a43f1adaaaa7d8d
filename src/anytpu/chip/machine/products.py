"""Products: passes through the array as products of float32 matrices, exact to the last bit.

Idea: float32 holds every integer up to 2**24 exactly. Let the magnitudes of all terms of a sum add up to at most 2**24.
Then float32 holds every partial sum, in any order and with or without fused multiply-adds, and the BLAS never rounds.
So the rows of all passes are gathered side by side (im2col), their tiles are stacked, and one product computes all
passes. If the bound does not hold, the product is split in two, and the parts are added as int32.

Rule: the magnitude of a byte is at most 128 signed and 255 unsigned. The weights are known, so the bound uses the sum
of their magnitudes in each column. At worst (-128 everywhere) it allows 1024 rows signed and 514 unsigned; for weights
of -127 to 127, 1032 signed. Numbers of 16 bits take two products: of their low bytes (unsigned) and of their high bytes
(signed), the second times 256. Sums of the parts are of 32 bits and wrap, as in the accumulators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from anytpu.chip.isa.design import BLOCK_BYTES, UNIT_BYTES
from anytpu.chip.isa.geometry import Window, sources
from anytpu.chip.isa.instructions import ArrayInstruction, Convolve
from anytpu.chip.isa.registers import Register
from anytpu.chip.machine import workers
from anytpu.chip.machine.decoding import Step
from anytpu.chip.machine.memories import ChipMemories, plane_rows

EXACT = 2**24
"""Maximum magnitude up to which float32 represents every integer."""

KEPT_BYTES = 2**31
"""Maximum bytes of an image's weights that are kept as float32 between runs."""

GATHERED_NUMBERS = 2**22
"""Maximum number of values that a worker gathers at a time; a single row may have more."""

MAX_ROWS, MIN_ROWS = 1024, 96
"""Maximum and minimum rows that a worker takes at a time."""


class Pass(NamedTuple):
    """A pass of a product.

    Attributes:
        address: unit of the Unified Buffer where its source plane starts.
        lanes: number of lanes of each tap.
        taps: indices of its taps; a `MatrixMultiply` has one, which is the plane itself.
        tile: block of the Weight Memory where its tile starts.
    """

    address: int
    lanes: int
    taps: range
    tile: int

    @property
    def depth(self) -> int:
        """Rows of the array that the pass uses."""
        return self.lanes * len(self.taps)


@dataclasses.dataclass(frozen=True, eq=False)
class ExactPart:
    """Rows `start` to `stop`, excluded, of stacked tiles, as float32 `(stop - start, columns)`."""

    start: int
    stop: int
    matrix: np.ndarray


def passes_of(step: Step, array: int) -> tuple[Pass, ...]:
    """Return the passes of a product on an array of a size."""
    product = product_of(step)
    if isinstance(product, Convolve):
        lanes, taps, first = map(step.integer, (Register.LANES, Register.TAPS, Register.FIRST_TAP))
        last = step.integer(Register.KERNEL_HEIGHT) * step.integer(Register.KERNEL_WIDTH)
        starts = range(first, first + product.repeat * taps, taps)
        sources = [(product.address, lanes, range(start, min(start + taps, last))) for start in starts]
    else:
        lanes, stride = min(step.integer(Register.PITCH) * UNIT_BYTES, array), step.integer(Register.PLANE_STRIDE)
        sources = [(product.address + number * stride, lanes, range(1)) for number in range(product.repeat)]
    return tuple(Pass(*source, tile) for source, tile in zip(sources, step.tiles, strict=True))


def product_of(step: Step) -> ArrayInstruction:
    """Return the instruction of a step that is a product."""
    assert isinstance(step.instruction, ArrayInstruction)
    return step.instruction


def halves_of(product: ArrayInstruction) -> tuple[bool, ...]:
    """Return for each byte of a number, the low byte first, whether it is the high byte of 16 bits."""
    return (False, True) if product.wide else (False,)


def gather(
    buffer: np.ndarray, step: Step, passes: Sequence[Pass], rows: tuple[int, int], out: np.ndarray, high: bool = False
) -> None:
    """Fill a matrix with the numbers that go into the array, the passes side by side.

    Args:
        buffer: the Unified Buffer.
        step: the product.
        passes: its passes, or some of them.
        rows: the first of its rows to take, and the row after the last.
        out: the matrix `(rows, columns)`, of a dtype that holds -128 to 255; written.
        high: whether to take the high bytes of 16-bit numbers; otherwise the low bytes.
    """
    product, (start, stop) = product_of(step), rows
    fill, offset, is_signed = step.integer(Register.ZERO_POINT), 0, not product.unsigned
    if product.wide:
        fill, is_signed = fill >> 8 if high else fill & 255, high
        offset = step.integer(Register.HIGH_OFFSET) if high else 0
    dtype, pitch = np.int8 if is_signed else np.uint8, step.integer(Register.PITCH)
    window = Window.of(step.registers).later(start) if isinstance(product, Convolve) else None
    group = 1 if window is None else window.group(stop - start)
    targets, column = out.reshape(-1, group, out.shape[1]), 0
    for one in passes:
        source = plane_rows(buffer, one.address + offset, pitch, one.lanes, dtype, group)
        for tap in one.taps:
            target = targets[:, :, column : column + one.lanes]
            column += one.lanes
            if window is None:
                target[...] = source[start:stop]
                continue
            numbers, inside = sources(window, stop - start, tap)
            target[inside] = source[numbers]
            if not isinstance(inside, slice):
                target[~inside] = fill


def tile_at(weights: np.ndarray, block: int, array: int) -> np.ndarray:
    """Return the tile that starts at a block of the Weight Memory: int8 `(array, array)`, a view."""
    start = block * BLOCK_BYTES
    return weights[start : start + array * array].view(np.int8).reshape(array, array)


def operands_of(memories: ChipMemories, step: Step, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Yield the operands of an array, pass by pass.

    Returns:
        The tile, int8 `(size, size)`, and the numbers sent into it, int32 `(rows, size)`. Then whether these are the
        high bytes of 16-bit numbers, whose sums count 256 times.
    """
    product = product_of(step)
    for one in passes_of(step, size):
        for high in halves_of(product):
            numbers = np.zeros((product.rows, size), np.int32)
            gather(memories.buffer, step, [one], (0, product.rows), numbers, high)
            yield tile_at(memories.weights, one.tile, size), numbers, high


class Multiplier:
    """Carries out the products of images with the same weights, and keeps these as float32 for the next run."""

    def __init__(self):
        self._kept: dict[tuple, tuple[ExactPart, ...]] = {}
        self._kept_bytes = 0

    def multiply(self, memories: ChipMemories, step: Step) -> None:
        """Write the sums of a product to the accumulators, or add them to the sums there."""
        array = memories.accumulators.shape[1]
        product, passes = product_of(step), passes_of(step, array)
        parts = self._parts(memories.weights, array, passes, 255 if product.unsigned or product.wide else 128)
        depth, width = parts[-1].stop, parts[-1].matrix.shape[1]
        target = memories.accumulators[product.accumulator : product.accumulator + product.rows]
        share = -(-product.rows // workers.count())
        block = max(1, min(MAX_ROWS, max(MIN_ROWS, share), GATHERED_NUMBERS // depth))
        batch = step.integer(Register.BATCH) or 1
        block = block // batch * batch or block  # whole positions are gathered fastest

        def work(start: int) -> None:
            stop = min(start + block, product.rows)
            numbers = workers.scratch("numbers", (stop - start, depth))
            made = workers.scratch("sums", (stop - start, width))
            sums, is_first = target[start:stop, :width], not product.accumulate
            if is_first:
                target[start:stop, width:] = 0
            for high in halves_of(product):
                gather(memories.buffer, step, passes, (start, stop), numbers, high)
                for part in parts:
                    np.matmul(numbers[:, part.start : part.stop], part.matrix, out=made)
                    if is_first:
                        sums[...] = made
                    else:
                        more = made.astype(np.int32)
                        sums += more * np.int32(256) if high else more
                    is_first = False

        workers.share(range(0, product.rows, block), work)

    def _parts(
        self, weights: np.ndarray, array: int, passes: Sequence[Pass], max_magnitude: int
    ) -> tuple[ExactPart, ...]:
        """Return the tiles of passes, stacked, without columns of 0 at the end."""
        key = array, max_magnitude, *((one.tile, one.depth) for one in passes)
        parts = self._kept.get(key)
        if parts is None:
            stacked = np.concatenate([tile_at(weights, one.tile, array)[: one.depth] for one in passes])
            used = np.flatnonzero(stacked.any(axis=0))
            parts = exact_parts(stacked[:, : used[-1] + 1 if len(used) else 1], max_magnitude)
            size_bytes = sum(part.matrix.nbytes for part in parts)
            if self._kept_bytes + size_bytes <= KEPT_BYTES:
                self._kept_bytes += size_bytes
                self._kept[key] = parts
        return parts


def exact_parts(stacked: np.ndarray, max_magnitude: int) -> tuple[ExactPart, ...]:
    """Split weights, int8 `(depth, columns)`, into few float32 matrices, each within the bound.

    Args:
        stacked: stacked tiles.
        max_magnitude: maximum magnitude of the numbers that they are multiplied with.
    """
    matrix = stacked.astype(np.float32)
    return tuple(ExactPart(start, stop, matrix[start:stop]) for start, stop in _ranges(stacked, max_magnitude, 0))


def _ranges(stacked: np.ndarray, max_magnitude: int, first: int) -> list[tuple[int, int]]:
    depth = len(stacked)
    magnitudes = np.abs(stacked.astype(np.int16)).sum(0, dtype=np.int64)
    if depth * max_magnitude * 128 <= EXACT or magnitudes.max(initial=0) * max_magnitude <= EXACT:
        return [(first, first + depth)]
    half = depth // 2
    return _ranges(stacked[:half], max_magnitude, first) + _ranges(stacked[half:], max_magnitude, first + half)
