"""The lanes of a timeline, one per unit, the sequence of layers above them, and the colours of events."""

from __future__ import annotations

import collections
import dataclasses

from anytpu.chip.isa.units import Unit
from anytpu.chip.page.figures import cycles_of
from anytpu.chip.timing.record import Event, Timing


@dataclasses.dataclass(frozen=True)
class Lane:
    """A line of a timeline with events that do not overlap.

    Attributes:
        name: label at the left.
        unit: unit whose events it shows.
        shifts: True for the events that shift a tile in, False for all others. The matrix unit needs both lanes, since
            a tile is shifted in while another multiplies.
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
"""The lanes, from top to bottom."""

BEFORE = "(before the first layer)"
"""Name of the part without a name."""

_COLOURS = {
    "ReadHostMemory": "c1",
    "WriteHostMemory": "c1",
    "fetch": "c4",
    "parameters": "c7",
    "table": "c7",
    "MatrixMultiply": "c0",
    "Convolve": "c0",
    "shift": "c2",
    "stall": "c3",
    "held": "c6",
    "Activate": "c5",
}
_INDICES = {(lane.unit, lane.shifts): index for index, lane in enumerate(LANES)}


def lane_of(event: Event) -> int:
    """Return the index of an event's lane."""
    return _INDICES[event.unit, event.kind == "shift"]


def colour_of(kind: str) -> str:
    """Return the colour of an event by its kind; unknown kinds are grey.

    Example:
        >>> colour_of("Convolve"), colour_of("wait")
        ('c0', 'c6')
    """
    return _COLOURS.get(kind, "c6")


def part_name(timing: Timing, tag: int) -> str:
    """Return the name of a part."""
    return timing.parts[tag].name if 0 <= tag < len(timing.parts) else BEFORE


def with_titles(timing: Timing) -> Timing:
    """Return a run whose parts have the shortest distinct names.

    A name is cut at its last slash if the result is unique. The part before the first layer comes last, if it takes
    any time.
    """
    named = [part for part in timing.parts if part.name or cycles_of(part)]
    short = [part.name.rpartition("/")[0] or part.name or BEFORE for part in named]
    counts = collections.Counter(short)
    pairs = zip(short, named, strict=True)
    parts = (dataclasses.replace(part, name=name) if counts[name] == 1 else part for name, part in pairs)
    return dataclasses.replace(timing, parts=tuple(parts))
