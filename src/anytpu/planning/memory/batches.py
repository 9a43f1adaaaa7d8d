"""The memory of a step as a function of its batch: the line through compiled batches, and the largest that fits.

Idea: the memory of a step grows almost linearly with its batch. Weights, their gradients and the code are fixed,
activations grow. Two compilations give the line, and the line says which batch to compile next. Each further
compilation narrows the bracket between a batch that fits and one that does not.

Rule: the largest batch was compiled, up to its schedule or completely, and fits. A batch a 32nd larger, or 8 rows a
device, was compiled as far and does not fit, unless the search ended early. The line is for one device of the number of
devices that were compiled for. Over more devices each takes fewer examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from anytpu.errors import PlanError
from anytpu.planning.records import MemoryUse

ROWS_A_CORE = 8
"""A core's vector units take rows by eights: larger batches are multiples of that."""

MAX_TRIES = 12
"""Maximum number of compilations in one search."""

FINE_ENOUGH = 32
"""The search ends when the batch that fits and the one that does not differ by less than a 32nd, or by 8 rows a
device."""

NEARLY_FULL = 0.9
"""Above this share of the memory the search goes on in small steps."""

_MAX_LARGER = 12
"""Batches above one that fits that `settle_batch` compiles; then it stops with the last that fits."""

_MAX_SMALLER = 3
"""Batches below one that does not fit that `settle_batch` compiles."""

MAX_GUESSES = 4
"""Batches that are compiled before the search bisects every second time."""

MemoryAt = Callable[[int], MemoryUse]
"""Compiles a global batch and returns its memory."""

_RELAXED = 0.93
"""If a step takes a larger share of the memory, the compiler made it fit. On v5e a batch of 128 K took 91 %, one of 164
K 99 %, and one of 256 K, which does not fit, a third more. On v6e, with room for it, 256 K takes twice as much as 128
K."""


@dataclasses.dataclass(frozen=True)
class MemoryLine:
    """The memory of one device as a function of the batch.

    Attributes:
        fixed_bytes: bytes that do not grow with the batch.
        example_bytes: bytes that each example of the global batch adds.
        limit_bytes: memory limit of one device.
        devices: number of devices over which examples are split.
    """

    fixed_bytes: float
    example_bytes: float
    limit_bytes: int
    devices: int

    def growing_bytes(self, batch_size: int) -> float:
        """Return the bytes that grow with the batch, at this batch."""
        return self.example_bytes * batch_size

    def largest(self, share: float = 1.0, saved_bytes: float = 0.0) -> int:
        """Return the largest batch that fits: a multiple of 8 rows a device if that many fit, else of 1.

        Args:
            share: share of the growing bytes that is left, 0 to 1.
            saved_bytes: fixed bytes that are saved.
        """
        rows = int((self.limit_bytes - self.fixed_bytes + saved_bytes) / (self.example_bytes * share * self.devices))
        return max(rows - rows % ROWS_A_CORE if rows >= ROWS_A_CORE else rows, 0) * self.devices


def is_relaxed(memory: MemoryUse) -> bool:
    """Return whether a step leaves so much memory free that the compiler does not trade time for memory."""
    return memory.fits and memory.peak_bytes <= _RELAXED * memory.limit_bytes


def fit_line(tried: Sequence[tuple[int, MemoryUse]], devices: int) -> MemoryLine | None:
    """Return the line through two compiled batches, or None if the memory does not grow.

    The two are the largest for which the compiler did not trade time for memory; without two such, the two largest.

    Example:
        >>> fit_line([(64, MemoryUse(200, 1000)), (128, MemoryUse(300, 1000))], 1)
        MemoryLine(fixed_bytes=100.0, example_bytes=1.5625, limit_bytes=1000, devices=1)
    """
    # Near the limit the compiler trades time for memory, and the memory no longer grows along the line.
    relaxed = [(batch, memory) for batch, memory in tried if is_relaxed(memory)]
    chosen = relaxed if len(dict(relaxed)) > 1 else tried
    points = sorted({batch: memory.peak_bytes for batch, memory in chosen}.items())[-2:]
    if len(points) < 2 or points[1][1] <= points[0][1]:
        return None
    (low, low_bytes), (high, high_bytes) = points
    each = (high_bytes - low_bytes) / (high - low)
    return MemoryLine(max(low_bytes - each * low, 0.0), each, tried[0][1].limit_bytes, devices)


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits.

    Attributes:
        batch_size: examples of a step over all devices. 0 if not even one example a device fits, or if the search ended
            before one fitted.
        tried: each compiled batch with its memory, in the order of compilation; a batch that was already known comes
            first.
        ended_by: the error of the compilation that ended the search early, such as a timeout; None if none failed.
    """

    batch_size: int
    tried: tuple[tuple[int, MemoryUse], ...]
    ended_by: Exception | None = None


def search_largest_batch(
    devices: int, memory_at: MemoryAt, start: int, too_large: tuple[int, MemoryUse] | None = None
) -> LargestBatch:
    """Return the largest batch that fits, to a 32nd; a multiple of 8 rows a device where that many fit.

    Args:
        devices: number of devices over which the batch is split.
        memory_at: compiles a global batch and returns its memory. Its first error ends the search.
        start: the batch to begin with, if none is known to be too large.
        too_large: a batch that does not fit, with its memory, or None.

    Raises:
        PlanError: batches up to 2**30 examples fit: nothing grows with the batch.
    """
    tried: dict[int, MemoryUse] = dict([too_large] if too_large else [])
    known = len(tried)
    unit = devices * ROWS_A_CORE
    # 1. Narrow the bracket between a batch that fits and one that does not.
    # The bracket in units: the largest that fits and the smallest that does not; 0: none known yet.
    fits, fails = 0, -(-too_large[0] // unit) if too_large else 0
    at = max((too_large[0] // 2 if too_large else start) // unit, 1)
    while len(tried) - known < MAX_TRIES and not (fails and fails - fits <= max(1, fits // FINE_ENOUGH)):
        try:
            memory = tried[at * unit] = memory_at(at * unit)
        except Exception as error:  # A timeout; or a step that is written for one batch.
            return LargestBatch(fits * unit, tuple(tried.items()), error)
        fits, fails = (max(fits, at), fails) if memory.fits else (fits, min(fails or at, at))
        if memory.fits and at * unit >= 2**30:
            raise PlanError(f"a batch of {at * unit:,} examples still fits: no memory of this program grows with it")
        # Invariant: fits < at, and at < fails once one failed. So each try narrows the bracket.
        at = next_batch(fits, fails, {batch / unit: memory for batch, memory in tried.items()})
    # 2. Without a batch of 8 rows a device, try fewer.
    if not fits:
        return _below_a_unit(devices, memory_at, tried)
    return LargestBatch(fits * unit, tuple(tried.items()))


def settle_batch(devices: int, batch_size: int, fits: Callable[[int], bool]) -> int:
    """Return the largest batch that fits, to a 32nd, from one that was found in another way: 0 if four smaller do not.

    A schedule may need more memory than the code, or less. So both sides are compiled. The search ends at a larger
    batch without an answer, and after twelve that fit; a still larger one may fit then.

    Args:
        devices: number of devices over which the batch is split.
        batch_size: the batch that was found.
        fits: compiles a batch completely, and returns whether it fits.

    Example:
        >>> settle_batch(8, 6144, lambda batch: batch < 6400), settle_batch(8, 6144, lambda batch: batch < 6000)
        (6336, 5888)
    """
    if fits(batch_size):
        for _ in range(_MAX_LARGER):
            try:
                larger = _larger_batch(batch_size, devices)
                if not fits(larger):
                    break
            except PlanError:  # A timeout, or a crash of the compiler: the answer stays.
                break
            batch_size = larger
        return batch_size
    for _ in range(_MAX_SMALLER):
        batch_size = _smaller_batch(batch_size, devices)
        if not batch_size or fits(batch_size):
            return batch_size
    return 0


def _larger_batch(batch_size: int, devices: int) -> int:
    """Return the batch a 32nd, or 8 rows a device, above; fewer rows double."""
    unit = devices * ROWS_A_CORE
    return batch_size + max(batch_size // unit // FINE_ENOUGH, 1) * unit if batch_size >= unit else 2 * batch_size


def _smaller_batch(batch_size: int, devices: int) -> int:
    """Return the batch whose `_larger_batch` is this one, or the next multiple above it; 0 below a row a device."""
    unit = devices * ROWS_A_CORE
    if batch_size < 2 * unit:
        return batch_size // 2 if batch_size >= 2 * devices else 0
    return batch_size - max(batch_size // unit // (FINE_ENOUGH + 1), 1) * unit


def next_batch(fits: int, fails: int, tried: Mapping[float, MemoryUse]) -> int:
    """Return the next batch, in units: where the line through two points meets the limit, kept inside the bracket."""
    guess = _crossing(tried)
    fine = max(fits // FINE_ENOUGH, 1)
    if not fails:
        # A compiler that makes room squeezes more in than the line says: a step beyond it, not a leap.
        is_full = max(memory.peak_bytes / memory.limit_bytes for memory in tried.values()) > NEARLY_FULL
        leap = fits + fine if is_full else (2 if len(tried) == 1 else 16) * fits
        return min(max(guess or leap, fits + fine), 16 * fits)
    # If the line is right, half a 32nd below the crossing fits, a 32nd more does not, and the search ends. If it is not
    # right, guesses would creep along an edge of the bracket: every second try bisects then.
    if guess is None or (len(tried) > MAX_GUESSES and len(tried) % 2):
        guess = (fits + fails) // 2
    else:
        guess -= guess // (2 * FINE_ENOUGH)
    return min(max(guess, fits + fine), fails - fine)


def _crossing(tried: Mapping[float, MemoryUse]) -> int | None:
    """Return where the line through the two points nearest the limit meets it, in units; None if it does not rise."""
    points = sorted((units, memory.peak_bytes) for units, memory in tried.items())
    if len(points) < 2 or points[-1][1] <= points[0][1]:
        return None
    limit = next(iter(tried.values())).limit_bytes
    (low, low_bytes), (high, high_bytes) = sorted(points, key=lambda point: abs(point[1] - limit))[:2]
    if high == low or high_bytes == low_bytes:
        return None
    return int(low + (limit - low_bytes) * (high - low) / (high_bytes - low_bytes))


def _below_a_unit(devices: int, memory_at: MemoryAt, tried: dict[int, MemoryUse]) -> LargestBatch:
    """Try 4, 2 and 1 rows a device that are fewer than what was tried, all of which is too large."""
    too_large = min(tried)
    for rows in (rows for rows in (4, 2, 1) if rows * devices < too_large):
        try:
            memory = tried[rows * devices] = memory_at(rows * devices)
        except Exception as error:
            return LargestBatch(0, tuple(tried.items()), error)
        if memory.fits:
            return LargestBatch(rows * devices, tuple(tried.items()))
    return LargestBatch(0, tuple(tried.items()))
