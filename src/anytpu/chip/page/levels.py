"""Fill levels over a run: the weight FIFO and the Unified Buffer.

Rule: levels are a list of (cycles, level from then on), sorted by time, with at most one entry per time.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from anytpu.chip.image.image import Image, Resident
from anytpu.chip.isa.design import UNIT_BYTES
from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.record import Timing

_WAITS = ("held", "stall", "shift")

Levels = list[tuple[float, float]]
"""(cycles, level) at each change."""


def fifo_levels(timing: Timing) -> Levels:
    """Return the number of tiles in the weight FIFO: +1 at the end of a fetch, -1 at the end of a shift."""
    changes = []
    for event in timing.events:
        if event.kind == "fetch":
            changes.append((event.stop_cycles, 1.0))
        elif event.kind == "shift":
            changes.append((event.stop_cycles, -1.0))
    return _levels(changes)


def buffer_levels(timing: Timing, image: Image) -> Levels:
    """Return the bytes of the Unified Buffer that tensors hold."""
    spans = [(*lifetime, resident.units * UNIT_BYTES) for lifetime, resident in lifetimes(timing, image)]
    return _levels(change for start, stop, size in spans for change in ((start, float(size)), (stop, -float(size))))


def lifetimes(timing: Timing, image: Image) -> list[tuple[tuple[float, float], Resident]]:
    """Return ((start, stop) in cycles, buffer range) for each live range in the Unified Buffer.

    The times are those of its first and last instruction. For an instruction without an event, the next one with an
    event is used. Waits and reads of the Weight Memory, which run ahead, are ignored: they do not access the buffer.
    """
    starts: dict[int, float] = {}
    stops: dict[int, float] = {}
    for event in timing.events:
        if event.instruction >= 0 and event.unit is not Unit.WEIGHTS and event.kind not in _WAITS:
            index = event.instruction
            starts[index] = min(starts.get(index, event.start_cycles), event.start_cycles)
            stops[index] = max(stops.get(index, event.stop_cycles), event.stop_cycles)
    timed = sorted(starts)

    def next_timed(index: int) -> int | None:
        position = bisect.bisect_left(timed, index)
        return timed[position] if position < len(timed) else None

    ranges = []
    for resident in image.residents:
        first, last = next_timed(resident.first), next_timed(resident.last)
        start = starts[first] if first is not None else timing.cycles
        stop = stops[last] if last is not None else timing.cycles
        ranges.append(((start, max(start, stop)), resident))
    return ranges


def peak(levels: Levels) -> float:
    """Return the highest level."""
    return max((level for _, level in levels), default=0.0)


def peak_units(image: Image) -> int:
    """Return the maximum number of units of the Unified Buffer that tensors hold at a time, by instruction order."""
    changes = [
        change
        for resident in image.residents
        for change in ((resident.first, resident.units), (resident.last + 0.5, -resident.units))
    ]
    return int(peak(_levels(changes)))


def _levels(changes: Iterable[tuple[float, float]]) -> Levels:
    sums: dict[float, float] = {}
    for cycles, change in changes:
        sums[cycles] = sums.get(cycles, 0.0) + change
    level, levels = 0.0, []
    for cycles in sorted(sums):
        level += sums[cycles]
        levels.append((cycles, level))
    return levels
