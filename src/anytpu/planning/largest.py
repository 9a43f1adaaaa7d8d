"""The largest batch that fits, found with the real compiler.

Idea: the memory that a step needs grows with its batch, nearly in a straight line. Two compilations give the line, the
line says where to look, and each further one narrows what lies between "fits" and "does not".

Rule: what is returned was compiled and fits; a batch a 32nd larger, or 8 rows a device, was compiled and does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from anytpu.errors import PlanError
from anytpu.planning.records import Memory

ROWS_A_CORE = 8
"""A core's vector units take rows by eights: larger batches are multiples of that."""

MOST_TRIES = 12
"""The most compilations that a search may take."""

FINE_ENOUGH = 32
"""The search ends when what fits and what does not differ by less than a 32nd, or by 8 rows a device."""


NEARLY_FULL = 0.9
"""Above this share of the memory the search goes on in small steps."""


@dataclasses.dataclass(frozen=True)
class Largest:
    """The largest batch that fits.

    Attributes:
        batch_size: examples of a step over all devices, or 0 when not even one example a device fits.
        tried: each batch that was compiled, with its memory, in the order in which they were.
    """

    batch_size: int
    tried: tuple[tuple[int, Memory], ...]


def largest_batch(devices: int, memory_at: Callable[[int], Memory], start: int, most: int | None = None) -> Largest:
    """Return the largest batch that fits, to a 32nd; a multiple of 8 rows a device where that many fit.

    Args:
        devices: what the batch is split over.
        memory_at: compiles a global batch and returns its memory.
        start: the batch to begin with.
        most: a batch that is known not to fit, or None.

    Raises:
        PlanError: batches up to 2**30 examples fit: nothing grows with the batch.
    """
    tried: dict[int, Memory] = {}
    unit = devices * ROWS_A_CORE
    fits, fails = 0, -(-most // unit) if most else 0  # in units; 0 of `fails`: none known yet
    at = max(min(start, (most or start) // 2) // unit, 1)
    while len(tried) < MOST_TRIES and not (fails and fails - fits <= max(1, fits // FINE_ENOUGH)):
        memory = tried[at * unit] = memory_at(at * unit)
        fits, fails = (max(fits, at), fails) if memory.fits else (fits, min(fails or at, at))
        if memory.fits and at * unit >= 2**30:
            raise PlanError(f"a batch of {at * unit:,} examples still fits: no memory of this program grows with it")
        at = _next(fits, fails, {batch // unit: memory for batch, memory in tried.items()})
    if not fits:
        return _below_a_unit(devices, memory_at, tried)
    return Largest(fits * unit, tuple(tried.items()))


def _next(fits: int, fails: int, tried: dict[int, Memory]) -> int:
    """Return where to look next: where the line through the last points meets the limit, kept inside the bracket."""
    guess = _crossing(tried)
    if not fails:
        # A compiler that makes room squeezes more in than the line says: a step beyond it, not a leap.
        least = fits + max(fits // FINE_ENOUGH, 1)
        is_full = max(memory.peak_bytes / memory.limit_bytes for memory in tried.values()) > NEARLY_FULL
        leap = least if is_full else (2 if len(tried) == 1 else 16) * fits
        return min(max(guess or leap, least), 16 * fits)
    # A guess at an edge of the bracket would creep: each try cuts off a quarter at least.
    quarter = max((fails - fits) // 4, 1)
    return min(max(guess or (fits + fails) // 2, fits + quarter), fails - quarter)


def _crossing(tried: dict[int, Memory]) -> int | None:
    points = sorted((units, memory.peak_bytes) for units, memory in tried.items())
    if len(points) < 2 or points[-1][1] <= points[0][1]:
        return None
    limit = next(iter(tried.values())).limit_bytes
    (low, low_bytes), (high, high_bytes) = sorted(points, key=lambda point: abs(point[1] - limit))[:2]
    if high == low or high_bytes == low_bytes:
        return None
    return int(low + (limit - low_bytes) * (high - low) / (high_bytes - low_bytes))


def _below_a_unit(devices: int, memory_at: Callable[[int], Memory], tried: dict[int, Memory]) -> Largest:
    """Look for fewer than eight rows a device: 4, 2, 1."""
    for rows in (4, 2, 1):
        memory = tried[rows * devices] = memory_at(rows * devices)
        if memory.fits:
            return Largest(rows * devices, tuple(tried.items()))
    return Largest(0, tuple(tried.items()))
