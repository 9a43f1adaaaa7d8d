"""`MemoryLine`: the memory of a step as a function of its batch, from two compiled batches.

Idea: the memory of a step grows almost linearly with its batch. Weights, their gradients and the code are fixed,
activations grow.

Rule: the line is for one device of the number of devices that were compiled for. Over more devices each takes fewer
examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from anytpu.planning.records import Memory

_RELAXED = 0.93
"""If a step takes a larger share of the memory, the compiler made it fit. On v5e a batch of 128 K took 91 %, one of 164
K 99 %, and one of 256 K, which does not fit, a third more. On v6e, with room for it, 256 K takes twice as much as 128
K."""

ROWS_A_CORE = 8
"""A core's vector units take rows by eights."""


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

    def growing(self, batch_size: int) -> float:
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


def is_relaxed(memory: Memory) -> bool:
    """Return whether a step leaves so much memory free that the compiler does not trade time for memory."""
    return memory.fits and memory.peak_bytes <= _RELAXED * memory.limit_bytes


def line_of(tried: Sequence[tuple[int, Memory]], devices: int) -> MemoryLine | None:
    """Return the line through two compiled batches, or None if the memory does not grow.

    The two are the largest for which the compiler did not trade time for memory; without two such, the two largest.

    Example:
        >>> line_of([(64, Memory(200, 1000)), (128, Memory(300, 1000))], 1)
        MemoryLine(fixed_bytes=100.0, example_bytes=1.5625, limit_bytes=1000, devices=1)
    """
    relaxed = [(batch, memory) for batch, memory in tried if is_relaxed(memory)]
    chosen = relaxed if len(dict(relaxed)) > 1 else tried
    points = sorted({batch: memory.peak_bytes for batch, memory in chosen}.items())[-2:]
    if len(points) < 2 or points[1][1] <= points[0][1]:
        return None
    (low, low_bytes), (high, high_bytes) = points
    each = (high_bytes - low_bytes) / (high - low)
    return MemoryLine(max(low_bytes - each * low, 0.0), each, tried[0][1].limit_bytes, devices)
