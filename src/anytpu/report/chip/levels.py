"""What fills up and empties over a run: the weight FIFO, and the Unified Buffer.

Rule: a level is a list of (cycles, level from then on), in order of time, without two of the same time.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from anytpu.chip.design import UNIT_BYTES
from anytpu.chip.image import Image, Resident
from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.record import Timing

_WAITS = ("held", "stall", "shift")

Levels = list[tuple[float, float]]
"""(cycles, level) at each change."""


def fifo_levels(timing: Timing) -> Levels:
    """Return the tiles that wait in the weight FIFO: one more when it has come, one less when it has
    been shifted in."""
    changes = []
    for event in timing.events:
        if event.kind == "fetch":
            changes.append((event.stop_cycles, 1.0))
        elif event.kind == "shift":
            changes.append((event.stop_cycles, -1.0))
    return _levels(changes)


def buffer_levels(timing: Timing, image: Image) -> Levels:
    """Return the bytes of the Unified Buffer that tensors hold."""
    spans = [(*lifetime, one.units * UNIT_BYTES) for lifetime, one in lifetimes(timing, image)]
    return _levels(change for start, stop, size in spans for change in ((start, float(size)), (stop, -float(size))))


def lifetimes(timing: Timing, image: Image) -> list[tuple[tuple[float, float], Resident]]:
    """Return ((start, stop) in cycles, stretch of the Unified Buffer) for each: the times of its instructions.

    An instruction without an event of its own counts as the next that has one. Neither waits count nor what is read
    from the Weight Memory, which runs ahead: they do not touch the buffer.
    """
    starts: dict[int, float] = {}
    stops: dict[int, float] = {}
    for event in timing.events:
        if event.instruction >= 0 and event.unit is not Unit.WEIGHTS and event.kind not in _WAITS:
            number = event.instruction
            starts[number] = min(starts.get(number, event.start_cycles), event.start_cycles)
            stops[number] = max(stops.get(number, event.stop_cycles), event.stop_cycles)
    known = sorted(starts)

    def nearest(number: int) -> int | None:
        place = bisect.bisect_left(known, number)
        return known[place] if place < len(known) else None

    found = []
    for one in image.residents:
        first, last = nearest(one.first), nearest(one.last)
        start = starts[first] if first is not None else timing.cycles
        stop = stops[last] if last is not None else timing.cycles
        found.append(((start, max(start, stop)), one))
    return found


def peak(levels: Levels) -> float:
    """Return the highest level."""
    return max((level for _, level in levels), default=0.0)


def peak_units(image: Image) -> int:
    """Return the most units of the Unified Buffer that tensors hold at a time, by instructions."""
    changes = [change for one in image.residents for change in ((one.first, one.units), (one.last + 0.5, -one.units))]
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


def thinned(levels: Levels, cycles: float, bins: int = 1500) -> Levels:
    """Return a level with at most about three points a bin: its last, and before it the highest and the lowest."""
    if len(levels) <= 3 * bins or not cycles:
        return levels
    kept: Levels = []
    bin_of = [int(at / cycles * bins) for at, _ in levels]
    start = 0
    for number in range(1, len(levels) + 1):
        if number < len(levels) and bin_of[number] == bin_of[start]:
            continue
        own = levels[start:number]
        extremes = {max(own, key=lambda one: one[1]), min(own, key=lambda one: one[1]), own[-1]}
        kept += sorted(extremes)
        start = number
    return kept
