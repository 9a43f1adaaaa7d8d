"""`causes_of`: each cycle of the matrix unit, by its cause, and layer by layer.

Rule: between two passes the matrix unit waits, in this order, for what a Sync holds it for (other), for its tile to
come from the Weight Memory (stall), for the tile to be shifted in (shift). A cycle in which it waits for two counts for
the first: a product that is held has not begun, and the paper counts the time that the unit is idle by itself (Table 3,
row 6). So the four causes add up.

A wait that is held by another unit's work counts for the part of the program that this work belongs to: the time of a
pool is the pool's, not that of the layer after it.
"""

from __future__ import annotations

import dataclasses

from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.walk import Pass, Stretch, Walk


@dataclasses.dataclass
class Causes:
    """Cycles by cause, of a program or of a part of it."""

    active: float = 0.0
    stall: float = 0.0
    shift: float = 0.0
    other: float = 0.0
    data_wait: float = 0.0
    input_wait: float = 0.0

    def add(self, more: Causes) -> None:
        """Count what another counted too."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(more, field.name))


@dataclasses.dataclass(frozen=True)
class Gaps:
    """What the matrix unit did between a pass and the one before: from `free` on it was held, then had no weights, then
    shifted them in, and at `start` it began.
    """

    free: float
    held: float
    arrived: float
    start: float


def gaps_of(one: Pass) -> Gaps:
    """Return what the matrix unit waited for before a pass."""
    held = min(one.held, one.start)
    return Gaps(one.free, held, max(held, min(one.shift, one.start)) if one.shift else one.start, one.start)


def causes_of(walk: Walk, window: tuple[int, int], start: float, end: float) -> tuple[Causes, dict[int, Causes]]:
    """Return the cycles from `start` to `end` by cause: of all, and of each part.

    Args:
        walk: what each unit did.
        window: the first pass that counts, and the one after the last; nothing but they fall between `start` and `end`.
        start, end: cycles.
    """
    parts: dict[int, Causes] = {}
    idle: list[tuple[float, float, int]] = []
    tag = -1
    for one in walk.passes[slice(*window)]:
        gaps, tag = gaps_of(one), one.work.tag
        part = parts.setdefault(tag, Causes())
        part.active += one.stop - one.start
        part.stall += gaps.arrived - gaps.held
        part.shift += gaps.start - gaps.arrived
        if gaps.held > gaps.free:
            idle.append((gaps.free, gaps.held, tag))
            part.data_wait += min(one.data, one.start) - gaps.free
            part.input_wait += min(one.input, one.start) - gaps.free
        start = one.stop
    if end > start:
        idle.append((start, end, tag))
    _share_idle(idle, walk.stretches[Unit.ACTIVATE], parts)
    total = Causes()
    for part in parts.values():
        total.add(part)
    return total, parts


def _share_idle(idle: list[tuple[float, float, int]], stretches: list[Stretch], parts: dict[int, Causes]) -> None:
    """Give each idle time to the parts that the activation unit worked for, and the rest to the part that waited."""
    at = 0
    for start, stop, tag in idle:
        rest = stop - start
        while at < len(stretches) and stretches[at].stop <= start:
            at += 1
        here = at
        while here < len(stretches) and stretches[here].start < stop:
            one = stretches[here]
            overlap = min(one.stop, stop) - max(one.start, start)
            parts.setdefault(one.work.tag, Causes()).other += overlap
            rest -= overlap
            here += 1
        parts.setdefault(tag, Causes()).other += rest
