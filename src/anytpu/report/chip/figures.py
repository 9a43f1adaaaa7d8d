"""The figures of a predicted run that are made of its counters: how fast, how full.

Rule: an operation is a multiplication or an addition, so that a multiply-add is two: TOPS counts 2 a multiply-add, the
roofline's axis counts multiply-adds a byte of weights, as the paper does.
"""

from __future__ import annotations

from anytpu import units
from anytpu.chip.design import Design
from anytpu.chip.timing.record import PartTiming, Timing
from anytpu.report.chip.causes import cycles_of
from anytpu.report.wording import UNKNOWN

VIRTUAL = "A virtual chip: results are exact by the meaning of the instructions, times are predicted."
"""What every report says of itself."""

PREDICTED = "Predicted by the time model, not measured: no such chip was run."
"""What stands beside every time."""

NOTHING = "This program has no work for the chip: none of its instructions takes a cycle."
"""What stands in the place of times where there are none."""


def utilisation(timing: Timing) -> float:
    """Return the rate of the run as a part of the peak rate; a 16-bit activation has half of it at most."""
    return timing.ops_per_s / timing.design.peak_ops_per_s


def intensity(part: PartTiming | Timing) -> float | None:
    """Return multiply-adds a byte of weights; None where no weights are read."""
    return part.macs / part.weight_bytes if part.weight_bytes else None


def part_ops_per_s(part: PartTiming, design: Design) -> float:
    """Return operations a second of one part; 0 where it takes no time."""
    cycles = cycles_of(part)
    return 2 * part.macs / cycles * design.clock_hz if cycles else 0.0


def format_cycles(cycles: float) -> str:
    """Write a number of cycles.

    Example:
        >>> format_cycles(1349.3), format_cycles(2_500_000)
        ('1,349 cycles', '2.5 M cycles')
    """
    return f"{units.format_count(cycles)} cycles"


def format_tops(ops_per_second: float) -> str:
    """Write operations a second as TOPS, the paper's unit.

    Example:
        >>> format_tops(12.3e12), format_tops(4.56e9), format_tops(0)
        ('12.3 TOPS', '0.00456 TOPS', '0 TOPS')
    """
    return f"{ops_per_second / 1e12:.3g} TOPS"


def format_decibel(ratio_db: float | None) -> str:
    """Write a ratio of signal to noise.

    Example:
        >>> format_decibel(31.46), format_decibel(None), format_decibel(float("inf"))
        ('31.5 dB', '-', 'exact')
    """
    if ratio_db is None:
        return UNKNOWN
    return "exact" if ratio_db == float("inf") else f"{ratio_db:.1f} dB"
