"""`events_of`: the work and the waits of each unit as events, to draw the run."""

from __future__ import annotations

from collections.abc import Iterator

from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.causes import gaps_of
from anytpu.chip.timing.record import Event
from anytpu.chip.timing.schedule import ArrayPass, Schedule


def events_of(schedule: Schedule) -> tuple[Event, ...]:
    """Return the events of a run, by unit and then by time; `Event.kind` lists their kinds."""
    events: list[Event] = []
    for unit in Unit:
        if unit == Unit.MATRIX:
            for array_pass in schedule.passes:
                events.extend(_of_pass(array_pass, schedule.design.array))
            continue
        for start, stop, work in schedule.intervals[unit]:
            kind = "fetch" if work.kind == "tile" else work.kind
            events.append(Event(unit, start, stop, kind, work.tag, work.number))
    return tuple(events)


def _of_pass(array_pass: ArrayPass, shift_cycles: int) -> Iterator[Event]:
    """Yield the events of the waits before a pass, of its shift, and of the pass."""
    gaps, work = gaps_of(array_pass), array_pass.work

    def event(start: float, stop: float, kind: str) -> Event:
        return Event(Unit.MATRIX, start, stop, kind, work.tag, work.number)

    if gaps.held > gaps.free:
        yield event(gaps.free, gaps.held, "held")
    if gaps.arrived > gaps.held:
        yield event(gaps.held, gaps.arrived, "stall")
    if array_pass.shift:
        # The shift is into the second plane and may begin during any earlier pass, if the first plane's tile was kept.
        yield event(array_pass.shift, array_pass.shift + shift_cycles, "shift")
    yield event(array_pass.start, array_pass.stop, work.kind)
