"""Figures derived from the counters of a predicted run: the causes of cycles, speed, utilisation.

Rule: a cause has the same name and colour in every table and plot. An operation is a multiplication or an addition, so
TOPS counts a multiply-add as two. The roofline's axis counts multiply-adds per byte of weights. Both follow the paper.
"""

from __future__ import annotations

import dataclasses

from anytpu import units
from anytpu.chip.isa.design import Design
from anytpu.chip.timing.record import PartTiming, Timing
from anytpu.report.wording import UNKNOWN

VIRTUAL = "A virtual chip: results are exact by the meaning of the instructions, times are predicted."
"""Statement in every report of a program."""

PREDICTED = "Predicted by the time model, not measured: no such chip was run."
"""Statement beside every time."""

NOTHING = "This program has no work for the chip: none of its instructions takes a cycle."
"""Statement in place of times for a program without work for the chip."""


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


def utilisation(timing: Timing) -> float:
    """Return the rate of the run as a fraction of the peak rate; at most 1/2 with 16-bit activations."""
    return timing.ops_per_s / timing.design.peak_ops_per_s


def intensity(part: PartTiming | Timing) -> float | None:
    """Return multiply-adds per byte of weights; None if no weights are read."""
    return part.macs / part.weight_bytes if part.weight_bytes else None


def part_ops_per_s(part: PartTiming, design: Design) -> float:
    """Return the operations per second of a part; 0 if it takes no time."""
    cycles = cycles_of(part)
    return 2 * part.macs / cycles * design.clock_hz if cycles else 0.0


def format_cycles(cycles: float) -> str:
    """Format a number of cycles.

    Example:
        >>> format_cycles(1349.3), format_cycles(2_500_000)
        ('1,349 cycles', '2.5 M cycles')
    """
    return f"{units.format_count(cycles)} cycles"


def format_tops(ops_per_second: float) -> str:
    """Format operations per second as TOPS, the paper's unit.

    Example:
        >>> format_tops(12.3e12), format_tops(4.56e9), format_tops(0)
        ('12.3 TOPS', '0.00456 TOPS', '0 TOPS')
    """
    return f"{ops_per_second / 1e12:.3g} TOPS"


def format_decibel(ratio_db: float | None) -> str:
    """Format a signal-to-noise ratio.

    Example:
        >>> format_decibel(31.46), format_decibel(None), format_decibel(float("inf"))
        ('31.5 dB', '-', 'exact')
    """
    if ratio_db is None:
        return UNKNOWN
    return "exact" if ratio_db == float("inf") else f"{ratio_db:.1f} dB"
