"""`causes_of`: each cycle of the matrix unit, by its cause, and layer by layer.

Rule: between two passes the matrix unit waits, in this order, for what a Sync holds it for (other), for its tile to
come from the Weight Memory (stall), for the tile to be shifted in (shift). A cycle in which it waits for two counts for
the first: a product that is held has not begun, and the paper counts the time that the unit is idle by itself (Table 3,
row 6). So the four causes add up.

A wait that is held by another unit's work counts for the part of the program that this work belongs to: the time of a
pool is the pool's, not that of the layer after it. So does the time in which the last sums come out of the array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.record import Span
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


class Idle(NamedTuple):
    """A time in which the matrix unit is held.

    Attributes:
        start, stop: from when to when.
        tag: the part that waits.
        drained: when the sums of the pass before are out of the array.
        before: the part of that pass.
    """

    start: float
    stop: float
    tag: int
    drained: float
    before: int


def gaps_of(one: Pass) -> Gaps:
    """Return what the matrix unit waited for before a pass."""
    held = min(one.held, one.start)
    return Gaps(one.free, held, max(held, min(one.shift, one.start)) if one.shift else one.start, one.start)


def causes_of(
    walk: Walk, window: tuple[int, int], start: float, end: float
) -> tuple[Causes, dict[int, Causes], tuple[Span, ...]]:
    """Return the cycles from `start` to `end` by cause: of all, of each part, and which part has them when.

    Args:
        walk: what each unit did.
        window: the first pass that counts, and the one after the last; nothing but they fall between `start` and `end`.
        start, end: cycles.
    """
    parts: dict[int, Causes] = {}
    idle: list[Idle] = []
    busy: list[Span] = []
    tag = walk.passes[window[0] - 1].work.tag if window[0] else None
    for one in walk.passes[slice(*window)]:
        gaps, before, tag = gaps_of(one), tag, one.work.tag
        part = parts.setdefault(tag, Causes())
        part.active += one.stop - one.start
        part.stall += gaps.arrived - gaps.held
        part.shift += gaps.start - gaps.arrived
        if gaps.held > gaps.free:
            idle.append(Idle(gaps.free, gaps.held, tag, gaps.free + walk.drain, tag if before is None else before))
            part.data_wait += min(one.data, one.start) - gaps.free
            part.input_wait += min(one.input, one.start) - gaps.free
        busy.append(Span(gaps.held, one.stop, tag))
        start = one.stop
    if end > start:
        last = -1 if tag is None else tag
        idle.append(Idle(start, end, last, start, last))
    owned = list(_owners(idle, walk.stretches[Unit.ACTIVATE]))
    for one in owned:
        parts.setdefault(one.tag, Causes()).other += one.stop_cycles - one.start_cycles
    total = Causes()
    for part in parts.values():
        total.add(part)
    return total, parts, _joined(sorted([*busy, *owned]))


def _owners(idles: list[Idle], stretches: list[Stretch]) -> Iterator[Span]:
    """Yield whose each idle time is: of the part that the activation unit works for, else of the part whose sums come
    out of the array, else of the part that waits.
    """
    at = 0
    for idle in idles:
        now = idle.start
        while at < len(stretches) and stretches[at].stop <= now:
            at += 1
        here = at
        while here < len(stretches) and stretches[here].start < idle.stop:
            one = stretches[here]
            first, last = max(one.start, now), min(one.stop, idle.stop)
            yield from _without_activation(idle, now, first)
            yield Span(first, last, one.work.tag)
            now, here = last, here + 1
        yield from _without_activation(idle, now, idle.stop)


def _without_activation(idle: Idle, start: float, stop: float) -> Iterator[Span]:
    drained = min(max(idle.drained, start), stop)
    yield Span(start, drained, idle.before)
    yield Span(drained, stop, idle.tag)


def _joined(spans: list[Span]) -> tuple[Span, ...]:
    """Return spans without empty ones, those of a part that follow each other as one."""
    found: list[Span] = []
    for one in spans:
        if one.stop_cycles == one.start_cycles:
            continue
        if found and found[-1].tag == one.tag:
            found[-1] = Span(found[-1].start_cycles, one.stop_cycles, one.tag)
        else:
            found.append(one)
    return tuple(found)
