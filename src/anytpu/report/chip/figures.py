"""Figures derived from the counters of a predicted run: speed and utilisation.

Rule: an operation is a multiplication or an addition, so TOPS counts a multiply-add as two. The roofline's axis counts
multiply-adds per byte of weights. Both follow the paper.
"""

from __future__ import annotations

from anytpu import units
from anytpu.chip.design import Design
from anytpu.chip.timing.record import PartTiming, Timing
from anytpu.report.chip.causes import cycles_of
from anytpu.report.wording import UNKNOWN

VIRTUAL = "A virtual chip: results are exact by the meaning of the instructions, times are predicted."
"""Statement in every report of a program."""

PREDICTED = "Predicted by the time model, not measured: no such chip was run."
"""Statement beside every time."""

NOTHING = "This program has no work for the chip: none of its instructions takes a cycle."
"""Statement in place of times for a program without work for the chip."""


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
