"""Where cycles go, by cause: the same four names and colours in every table and plot."""

from __future__ import annotations

import dataclasses

from anytpu.chip.timing.record import PartTiming, Timing


@dataclasses.dataclass(frozen=True)
class Cause:
    """What the array did, or waited for.

    Attributes:
        name: in a table.
        short: the same in one word.
        text: in a sentence: "the array multiplied".
        row: of Table 3 of the paper.
        colour: of `COLOURS`.
        style: of a terminal.
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
"""In the order of the cycles of `cycles_by_cause`; they add up to all of them."""


def cycles_by_cause(one: Timing | PartTiming) -> tuple[float, float, float, float]:
    """Return the cycles of each of `CAUSES`."""
    return one.active_cycles, one.stall_cycles, one.shift_cycles, one.other_cycles


def cycles_of(part: PartTiming) -> float:
    """Return the cycles of a part: of all causes."""
    return sum(cycles_by_cause(part))


def dominating(one: Timing | PartTiming) -> Cause:
    """Return the cause of most cycles.

    Example:
        >>> dominating(PartTiming("dense", 10.0, 80.0, 5.0, 5.0, 0, 0)).name
        'weight stall'
    """
    cycles = cycles_by_cause(one)
    return CAUSES[cycles.index(max(cycles))]
