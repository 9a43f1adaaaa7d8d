"""The lanes of a timeline: the units by name, and the layers that follow one another above them."""

from __future__ import annotations

import collections
import dataclasses

from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.record import Event, Timing
from anytpu.report.chip.causes import cycles_of


@dataclasses.dataclass(frozen=True)
class Lane:
    """A line of a timeline, on which one thing is done after another.

    Attributes:
        name: at its left.
        unit: whose events it has.
        shifts: only those that shift a tile in, or all but those: a tile is shifted in while another one multiplies.
    """

    name: str
    unit: Unit
    shifts: bool = False


LANES = (
    Lane("host to chip", Unit.READ),
    Lane("weight fetch", Unit.WEIGHTS),
    Lane("weight shift", Unit.MATRIX, shifts=True),
    Lane("matrix unit", Unit.MATRIX),
    Lane("activation unit", Unit.ACTIVATE),
    Lane("chip to host", Unit.WRITE),
)
"""The lanes, from above."""

BEFORE = "(before the first layer)"
"""What the part without a name is called."""

_NUMBERS = {(lane.unit, lane.shifts): number for number, lane in enumerate(LANES)}


def lane_of(event: Event) -> int:
    """Return the number of the lane of an event."""
    return _NUMBERS[event.unit, event.kind == "shift"]


def part_name(timing: Timing, tag: int) -> str:
    """Return the name of a part; "" for what comes before the first."""
    return timing.parts[tag].name if 0 <= tag < len(timing.parts) else ""


def with_titles(timing: Timing) -> Timing:
    """Return a run whose parts are called as briefly as tells them apart.

    A name goes without what follows its last slash, if no other part would be called so. What comes before the first
    part stands last, where it takes any time.
    """
    named = [part for part in timing.parts if part.name or cycles_of(part)]
    short = [part.name.rpartition("/")[0] or part.name or BEFORE for part in named]
    counts = collections.Counter(short)
    pairs = zip(short, named, strict=True)
    parts = (dataclasses.replace(part, name=one) if counts[one] == 1 else part for one, part in pairs)
    return dataclasses.replace(timing, parts=tuple(parts))


def spans(timing: Timing) -> list[tuple[float, float, int]]:
    """Return (start, stop, part) in cycles: at which part the chip is, one after another.

    A part has the chip from the first event of its own on a unit that computes to the first such event of the next.
    """
    tagged = [event for event in timing.events if event.tag >= 0]
    first: dict[int, float] = {}
    for event in [one for one in tagged if one.unit in (Unit.MATRIX, Unit.ACTIVATE)] or tagged:
        first[event.tag] = min(first.get(event.tag, event.start_cycles), event.start_cycles)
    ordered = sorted((start, tag) for tag, start in first.items())
    stops = [start for start, _ in ordered[1:]] + [timing.cycles] * bool(ordered)
    return [(start, stop, tag) for (start, tag), stop in zip(ordered, stops, strict=True)]
