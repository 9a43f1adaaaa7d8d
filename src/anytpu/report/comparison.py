"""The report of a comparison of systems: a table, bars of the speed, and notes on the numbers."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anytpu import units
from anytpu.report.devices import reason_lines
from anytpu.report.terminal import bar, hang, say
from anytpu.system.comparison import Comparison, Measurement


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print a comparison."""
    say(console, comparison.job, style="bold")
    say(console, f"{comparison.measurements[0].examples:,} examples an epoch, {comparison.batch_size:,} a step")
    console.print(table(comparison))
    for line in bar_lines(comparison, console.width):
        console.print(line, soft_wrap=True)
    console.print()
    for line in note_lines(comparison, console.width):
        console.print(line, soft_wrap=True)


def table(comparison: Comparison) -> Table:
    """Return the table of numbers, one row per system."""
    measured = comparison.measurements
    metrics = [name for name in measured[0].metrics if name != "loss"][:2]
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("where", no_wrap=True)
    for title in ("first epoch", "epoch", "example", "speed", "loss", *metrics):
        shown.add_column(title, justify="right", no_wrap=True)
    for measurement in measured:
        quality = [f"{measurement.metrics[name]:.4f}" for name in ("loss", *metrics)]
        shown.add_row(measurement.name, *_times(measurement), f"{comparison.speed_up(measurement):.2f} x", *quality)
    return shown


def _times(measurement: Measurement) -> list[str]:
    return [
        units.format_seconds(duration_s)
        for duration_s in (measurement.first_epoch_s, measurement.median_s, measurement.example_s)
    ]


def bar_lines(comparison: Comparison, width: int = 80) -> list[Text]:
    """Return a bar for each system whose length is proportional to its speed.

    Args:
        comparison: the comparison to show.
        width: columns of the terminal.
    """
    measured = comparison.measurements
    names = max(len(measurement.name) for measurement in measured)
    rates = [units.format_rate(measurement.examples_per_s, "examples") for measurement in measured]
    room = max(width - names - max(map(len, rates)) - 4, 8)
    fastest = max(measurement.examples_per_s for measurement in measured)
    lines = []
    for measurement, rate in zip(measured, rates, strict=True):
        filled = bar(measurement.examples_per_s / fastest, room)
        line = Text(f"{measurement.name:<{names}}  ")
        line.append(filled, "yellow" if measurement.is_virtual else "green")
        lines.append(line.append(f"  {rate}"))
    return lines


def note_lines(comparison: Comparison, width: int = 80) -> list[str]:
    """Return the notes: the method of measurement, the nature of virtual cores, the reasons for missing systems."""
    measured = comparison.measurements
    rounds = len(measured[0].epoch_s)
    epochs = "1 epoch" if rounds == 1 else f"the median of {rounds} epochs, with the systems alternating"
    notes = [f"The first epoch includes compilation. The others: {epochs}."]
    if any(measurement.is_virtual for measurement in measured):
        notes.append(
            "Virtual cores are simulated on this machine's CPU: 8 of them are no faster than 1. They show that a "
            "program gives the same results on 8."
        )
    lines = [line for note in notes for line in hang("", note, width)]
    if comparison.absent:
        lines += ["Not on this machine:", *reason_lines(comparison.absent, width)]
    return lines
