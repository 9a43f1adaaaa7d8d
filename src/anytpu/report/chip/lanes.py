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
    """Return the name of a part."""
    return timing.parts[tag].name if 0 <= tag < len(timing.parts) else BEFORE


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


def ranges(timing: Timing) -> list[tuple[float, float, int]]:
    """Return (start, stop, part) in cycles for each part that has any: from its first to its last."""
    found: dict[int, tuple[float, float]] = {}
    for start, stop, tag in timing.spans:
        found[tag] = (found.get(tag, (start, stop))[0], stop)
    return [(*between, tag) for tag, between in found.items()]
