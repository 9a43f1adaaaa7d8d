"""The causes of cycles, with the same four names and colours in every table and plot."""

from __future__ import annotations

import dataclasses

from anytpu.chip.timing.record import PartTiming, Timing


@dataclasses.dataclass(frozen=True)
class Cause:
    """A state of the array in a cycle: active, or waiting for something.

    Attributes:
        name: name in tables.
        short: name in one word.
        text: description as a clause: "the array multiplied".
        row: row of Table 3 of the paper.
        colour: colour in plots, a name in `COLOURS`.
        style: style in the terminal.
    """

    name: str
    short: str
    text: str
    row: int
    colour: str
    style: str


CAUSES = (
    Cause("array active", "active", "the array multiplied", 1, "c0", "blue"),
    Cause("weight stall", "stall", "it waited for weights from the Weight Memory", 4, "c3", "red"),
    Cause("weight shift", "shift", "it waited for weights to be shifted in", 5, "c2", "yellow"),
    Cause("non-matrix", "non-matrix", "it had nothing to multiply, for any other reason", 6, "c6", "bright_black"),
)
"""All causes, in the order of `cycles_by_cause`; their cycles add up to the total."""


def cycles_by_cause(counted: Timing | PartTiming) -> tuple[float, float, float, float]:
    """Return the cycles of each of `CAUSES`."""
    return counted.active_cycles, counted.stall_cycles, counted.shift_cycles, counted.other_cycles


def cycles_of(part: PartTiming) -> float:
    """Return the cycles of a part over all causes."""
    return sum(cycles_by_cause(part))


def dominating(counted: Timing | PartTiming) -> Cause:
    """Return the cause with the most cycles.

    Example:
        >>> dominating(PartTiming("dense", 10.0, 80.0, 5.0, 5.0, 0, 0)).name
        'weight stall'
    """
    cycles = cycles_by_cause(counted)
    return CAUSES[cycles.index(max(cycles))]
