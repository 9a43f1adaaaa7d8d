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
            before = 0.0
            for one in walk.passes:
                found.extend(_of_pass(one, before, walk.design.array))
                before = one.start
            continue
        for start, stop, work in walk.stretches[unit]:
            found.append(Event(unit, start, stop, _FETCHES.get(work.kind, work.kind), work.tag, work.number))
    return tuple(found)


def _of_pass(one: Pass, before: float, shift_cycles: int) -> Iterator[Event]:
    """Return what comes before a pass, and the pass; `before` is when the one before it started."""
    gaps, work = gaps_of(one), one.work

    def event(start: float, stop: float, kind: str) -> Event:
        return Event(Unit.MATRIX, start, stop, kind, work.tag, work.number)

    loaded = one.shift + shift_cycles
    if gaps.held > gaps.free:
        yield event(gaps.free, gaps.held, "held")
    if gaps.arrived > gaps.held:
        yield event(gaps.held, gaps.arrived, "stall")
    if one.shift:
        # Inside of the pass before, inside of the time that it is held, or by itself: never across two of them.
        inside = before if loaded <= gaps.free else gaps.free if loaded <= gaps.held else gaps.held
        yield event(max(one.shift, inside), loaded, "shift")
    yield event(one.start, one.stop, work.kind)
