"""`events_of`: what each unit did when, for a picture of the run."""

from __future__ import annotations

from collections.abc import Iterator

from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.causes import gaps_of
from anytpu.chip.timing.record import Event
from anytpu.chip.timing.walk import Pass, Walk

_FETCHES = {"tile": "fetch"}


def events_of(walk: Walk) -> tuple[Event, ...]:
    """Return the events of a run, unit by unit and in order of time; see `Event.kind` for what they are."""
    found: list[Event] = []
    for unit in Unit:
        if unit == Unit.MATRIX:
            for one in walk.passes:
                found.extend(_of_pass(one, walk.design.array))
            continue
        for start, stop, work in walk.stretches[unit]:
            found.append(Event(unit, start, stop, _FETCHES.get(work.kind, work.kind), work.tag, work.number))
    return tuple(found)


def _of_pass(one: Pass, shift_cycles: int) -> Iterator[Event]:
    """Return what comes before a pass, and the pass."""
    gaps, work = gaps_of(one), one.work

    def event(start: float, stop: float, kind: str) -> Event:
        return Event(Unit.MATRIX, start, stop, kind, work.tag, work.number)

    if gaps.held > gaps.free:
        yield event(gaps.free, gaps.held, "held")
    if gaps.arrived > gaps.held:
        yield event(gaps.held, gaps.arrived, "stall")
    if one.shift:
        # Into the second plane of the array, whatever the first does: behind a pass of long ago, if that tile was kept.
        yield event(one.shift, one.shift + shift_cycles, "shift")
    yield event(one.start, one.stop, work.kind)
