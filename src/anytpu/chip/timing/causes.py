"""`causes_of`: the cycles of the matrix unit by cause, in total and per part of the program.

The matrix unit is active during a pass. Between two passes it waits for three things, in this order:

1. Other: for the work that a Sync orders before the product.
2. Stall: for the tile to arrive from the Weight Memory.
3. Shift: for the tile to be shifted into the array.

Rule: each cycle has one cause, the first that applies, so that the four causes add up to the total. A product that a
Sync holds has not begun. The paper likewise counts the cycles in which the unit is idle by themselves (Table 3, row 6).

If another unit's work holds the matrix unit, the wait counts for that work's part of the program. The time of a pool
belongs to the pool, not to the next layer. Likewise, the time to drain a layer's last sums belongs to that layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.record import Span
from anytpu.chip.timing.schedule import ArrayPass, Schedule, WorkInterval


@dataclasses.dataclass
class CycleCauses:
    """Cycles by cause, of a program or of a part of it.

    Attributes:
        active: cycles in which the array multiplies.
        stall: cycles of waiting for a tile from the Weight Memory.
        shift: cycles of waiting for a tile to be shifted in.
        other: all other cycles.
        data_wait: cycles of waiting for results of the chip; in total a part of `other`.
        input_wait: cycles of waiting for data of the host; in total a part of `other`.
    """

    active: float = 0.0
    stall: float = 0.0
    shift: float = 0.0
    other: float = 0.0
    data_wait: float = 0.0
    input_wait: float = 0.0

    def add(self, more: CycleCauses) -> None:
        """Add the cycles of another `CycleCauses`."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(more, field.name))


@dataclasses.dataclass(frozen=True)
class PassGaps:
    """The waits of the matrix unit before a pass, as times in cycles.

    Attributes:
        free: end of the previous pass. Until `held` a Sync holds the product.
        held: end of that wait. Until `arrived` the unit waits for its tile.
        arrived: end of that wait, when the shift of the tile begins or is in progress. The shift ends by `start`.
        start: start of the pass.
    """

    free: float
    held: float
    arrived: float
    start: float


class IdleInterval(NamedTuple):
    """An interval in which a Sync holds the matrix unit.

    Attributes:
        start, stop: the interval, in cycles.
        tag: index of the part that waits.
        drained: time at which the previous pass's sums are in the accumulators, in cycles.
        before: index of the previous pass's part.
    """

    start: float
    stop: float
    tag: int
    drained: float
    before: int


def gaps_of(array_pass: ArrayPass) -> PassGaps:
    """Return the waits of the matrix unit before a pass."""
    held = min(array_pass.held, array_pass.start)
    return PassGaps(
        array_pass.free,
        held,
        max(held, min(array_pass.shift, array_pass.start)) if array_pass.shift else array_pass.start,
        array_pass.start,
    )


def causes_of(
    schedule: Schedule, window: tuple[int, int], start: float, end: float
) -> tuple[CycleCauses, dict[int, CycleCauses], tuple[Span, ...]]:
    """Return the cycles from `start` to `end` by cause.

    Args:
        schedule: the finished schedule of all units.
        window: index of the first pass and index after the last pass; exactly these are between `start` and `end`.
        start, end: the interval, in cycles.

    Returns:
        The cycles of the whole program, the cycles of each part by index, and the part of each interval of cycles.
    """
    parts: dict[int, CycleCauses] = {}
    idle: list[IdleInterval] = []
    busy: list[Span] = []
    tag = schedule.passes[window[0] - 1].work.tag if window[0] else None
    # 1. Each pass, and the waits before it.
    for array_pass in schedule.passes[slice(*window)]:
        gaps, before, tag = gaps_of(array_pass), tag, array_pass.work.tag
        part = parts.setdefault(tag, CycleCauses())
        part.active += array_pass.stop - array_pass.start
        part.stall += gaps.arrived - gaps.held
        part.shift += gaps.start - gaps.arrived
        if gaps.held > gaps.free:
            idle.append(
                IdleInterval(gaps.free, gaps.held, tag, gaps.free + schedule.drain, tag if before is None else before)
            )
            part.data_wait += min(array_pass.data, array_pass.start) - gaps.free
            part.input_wait += min(array_pass.input, array_pass.start) - gaps.free
        busy.append(Span(gaps.held, array_pass.stop, tag))
        start = array_pass.stop
    # 2. The rest after the last pass.
    if end > start:
        last = -1 if tag is None else tag
        idle.append(IdleInterval(start, end, last, start, last))
    # 3. Idle cycles count for the part whose work holds the matrix unit.
    owned = list(_owners(idle, schedule.intervals[Unit.ACTIVATE]))
    for span in owned:
        parts.setdefault(span.tag, CycleCauses()).other += span.stop_cycles - span.start_cycles
    total = CycleCauses()
    for part in parts.values():
        total.add(part)
    return total, parts, _joined(sorted([*busy, *owned]))


def _owners(idles: list[IdleInterval], intervals: list[WorkInterval]) -> Iterator[Span]:
    """Yield the part to which each idle interval belongs.

    It is the part of the activation unit's work, if it works. Otherwise it is the previous pass's part until its sums
    are drained, then the part that waits.
    """
    at = 0
    for idle in idles:
        now = idle.start
        while at < len(intervals) and intervals[at].stop <= now:
            at += 1
        here = at
        while here < len(intervals) and intervals[here].start < idle.stop:
            interval = intervals[here]
            first, last = max(interval.start, now), min(interval.stop, idle.stop)
            yield from _without_activation(idle, now, first)
            yield Span(first, last, interval.work.tag)
            now, here = last, here + 1
        yield from _without_activation(idle, now, idle.stop)


def _without_activation(idle: IdleInterval, start: float, stop: float) -> Iterator[Span]:
    drained = min(max(idle.drained, start), stop)
    yield Span(start, drained, idle.before)
    yield Span(drained, stop, idle.tag)


def _joined(spans: list[Span]) -> tuple[Span, ...]:
    """Return the spans without empty spans, with consecutive spans of one part merged."""
    joined: list[Span] = []
    for span in spans:
        if span.stop_cycles == span.start_cycles:
            continue
        if joined and joined[-1].tag == span.tag:
            joined[-1] = Span(joined[-1].start_cycles, span.stop_cycles, span.tag)
        else:
            joined.append(span)
    return tuple(joined)
