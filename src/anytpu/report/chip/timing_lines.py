"""The report of a predicted run in the terminal: cycles by cause and by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from anytpu import units
from anytpu.chip.timing.record import PartTiming, Timing
from anytpu.report.chip import figures
from anytpu.report.chip.causes import CAUSES, cycles_by_cause, cycles_of, dominating
from anytpu.report.chip.fitted import fitted
from anytpu.report.chip.grouping import grouped_parts
from anytpu.report.chip.program_lines import MAX_LAYERS, wrapped
from anytpu.report.comparison import bar
from anytpu.report.wording import one_line, percent


def timing_lines(timing: Timing, width: int, ascii_only: bool) -> Iterator[Text | Table]:
    """Yield the figures of a predicted run, line by line, and the table of its layers."""
    yield Text(f"{one_line(timing.name)}, a batch of {timing.batch:,}", "bold")
    yield from wrapped(figures.PREDICTED, width, "yellow")
    if not timing.cycles:
        for line in idle_sentences(timing):
            yield from wrapped(line, width)
        return
    for line in speed_sentences(timing):
        yield from wrapped(line, width)
    yield Text()
    yield from cause_lines(timing, width, ascii_only)
    parts = grouped_parts(timing.parts, MAX_LAYERS)
    if parts:
        longest = sorted(parts, key=cycles_of, reverse=True)[:MAX_LAYERS]
        yield part_table(timing, [part for part in parts if any(part is kept for kept in longest)], width)
    if len(parts) > MAX_LAYERS:
        yield Text(f"the {MAX_LAYERS} of {len(parts):,} layers that take longest", "dim")


def speed_sentences(timing: Timing) -> list[str]:
    """Return sentences on the speed of a run."""
    rate = units.format_rate(timing.examples_per_s, "examples")
    dies = timing.design.dies
    server = units.format_rate(timing.server_examples_per_s, "examples")
    interval = "from batch to batch" if timing.back_to_back else "a batch"
    waits = [
        cycles / timing.cycles if timing.cycles else 0.0
        for cycles in (timing.data_wait_cycles, timing.input_wait_cycles)
    ]
    said = [
        f"{figures.format_cycles(timing.cycles)} at {units.format_hertz(timing.design.clock_hz)}: "
        f"{units.format_seconds(timing.time_s)} {interval}, {rate}{f', {server} on {dies} chips' if dies > 1 else ''}.",
        f"{figures.format_tops(timing.ops_per_s)}, {percent(figures.utilisation(timing))} of the peak of "
        f"{figures.format_tops(timing.design.peak_ops_per_s)}.",
        f"Inputs and outputs take {percent(timing.host_share)} of that time on the host's link; the array waits "
        f"{percent(waits[0])} of it for its own results and {percent(waits[1])} for data of the host.",
    ]
    if timing.host_steps:
        said.append(f"Not in that time, as the host does it: {one_line(', '.join(timing.host_steps))}.")
    return said


def idle_sentences(timing: Timing) -> list[str]:
    """Return sentences on a run without work for the chip."""
    host = [f"The host does all of it: {one_line(', '.join(timing.host_steps))}."] if timing.host_steps else []
    return [figures.NOTHING, *host]


def cause_lines(timing: Timing, width: int, ascii_only: bool) -> Iterator[Text]:
    """Yield a bar for each cause, proportional to its share of the cycles."""
    names = max(len(cause.name) for cause in CAUSES)
    room = max(min(width - names - 30, 60), 8)
    for cause, cycles in zip(CAUSES, cycles_by_cause(timing), strict=True):
        share = cycles / timing.cycles if timing.cycles else 0.0
        line = Text(f"{cause.name:<{names}}  {percent(share):>7}  {figures.format_cycles(cycles):>15}  ")
        yield line.append(bar(share, room, ascii_only) if cycles > 0 else "", cause.style)


def format_intensity(macs_per_byte: float) -> str:
    """Format multiply-adds per byte.

    Example:
        >>> format_intensity(1349.3), format_intensity(0.156), format_intensity(0)
        ('1,349', '0.16', '0')
    """
    return f"{macs_per_byte:,.0f}" if macs_per_byte >= 10 else f"{macs_per_byte:.2g}"


def part_table(timing: Timing, parts: Sequence[PartTiming], width: int) -> Table:
    """Return the table of layers of a predicted run, one row each."""
    titles = ("layer", "cycles", *(cause.short for cause in CAUSES), "TOPS", "MACs/B", "mostly")
    rows = []
    for part in parts:
        cycles, cause = cycles_of(part), dominating(part)
        intensity = figures.intensity(part)
        cells = [one_line(part.name), units.format_count(cycles)]
        cells += [percent(spent / cycles) if cycles else "" for spent in cycles_by_cause(part)]
        cells += [f"{figures.part_ops_per_s(part, timing.design) / 1e12:.2f}" if part.macs else ""]
        cells += ["" if intensity is None else format_intensity(intensity)]
        rows.append([*(Text(cell) for cell in cells), Text(cause.short, cause.style) if cycles else Text()])
    return fitted(titles, rows, width, spare=("MACs/B", "TOPS", "mostly"))
