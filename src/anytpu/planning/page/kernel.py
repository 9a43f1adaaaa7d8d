"""The report of a kernel's check: its results, and a table with a row for each chip."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from anytpu import units
from anytpu.planning.records.kernels import KernelCheck, KernelOnChip
from anytpu.report.tables import TableReport
from anytpu.report.terminal import compact_table, hang, open_console, say

_TITLES = ("system", "compiled", "VMEM", "time", "between", "bound", "around it")
_MEANING = (
    "time: of the kernel on one device, predicted from its own code times its grid; around it: of the other "
    "operations of the function."
)


class KernelReport(TableReport):
    """The renderer of `KernelCheck`."""

    no_page = "the check of a kernel has no page; write its numbers: check.to_json(path)"
    no_plots = "the check of a kernel has no plots; write its numbers: check.to_json(path)"

    def show(self, record: KernelCheck) -> None:
        """Print the results of the interpreter, the table, and the compiler's errors with advice."""
        console = open_console()
        say(console, f"{record.name}, {record.inputs}", style="bold")
        for line in _grid_lines(record):
            say(console, line, style="dim")
        for line in hang("results: ", results_text(record), console.width):
            console.print(Text(line), soft_wrap=True)
        table = compact_table(_TITLES, left=("system", "bound"))
        for chip in record:
            table.add_row(*_cells(chip))
        console.print(table)
        for chip in record:
            for line in hang(f"{chip.target.name}: ", _trouble(chip), console.width) if _trouble(chip) else []:
                console.print(Text(line), soft_wrap=True)
        for line in hang("", _MEANING, console.width):
            console.print(Text(line, "dim"), soft_wrap=True)

    def caption(self, record: KernelCheck) -> str:
        """Return the title of the table."""
        return f"{record.name}: {results_text(record)}"

    def titles(self, record: KernelCheck) -> Sequence[str]:
        """Return the titles of the columns."""
        return _TITLES

    def rows(self, record: KernelCheck) -> list[list[str]]:
        """Return the cells of each system."""
        return [_cells(chip) for chip in record]


KERNEL_REPORT = KernelReport()
"""The renderer that `showing.report("kernel")` returns."""


def results_text(record: KernelCheck) -> str:
    """Return a sentence on the results of the interpreter."""
    comparison = record.comparison
    if comparison is None:
        return "not compared, because there is no reference."
    if comparison.fault:
        return f"wrong: {comparison.fault}."
    return (
        f"those of the reference. The largest error is {comparison.error:.2g} of the largest value, and the tolerance "
        f"{comparison.tolerance:.2g}. No race, no access out of bounds. (TPU interpret mode on this CPU.)"
    )


def _grid_lines(record: KernelCheck) -> list[str]:
    texts = [" x ".join("?" if size is None else f"{size:,}" for size in grid.grid) or "1" for grid in record.grids]
    return [f"{grid.name}, grid {text}" for grid, text in zip(record.grids, texts, strict=True)]


def _cells(chip: KernelOnChip) -> list[str]:
    if chip.time_s is None or chip.interval_s is None:
        return [chip.target.name, "no", "", "", "", "", ""]
    low_s, high_s = chip.interval_s
    return [
        chip.target.name,
        "yes",
        "" if chip.vmem_bytes is None else units.format_bytes(chip.vmem_bytes),
        f"{'at least ' if chip.is_floor else ''}{units.format_seconds(chip.time_s)}",
        "" if chip.is_floor else f"{units.format_seconds(low_s)} to {units.format_seconds(high_s)}",
        chip.bound,
        units.format_seconds(chip.other_s) if chip.other_s else "",
    ]


def _trouble(chip: KernelOnChip) -> str:
    if not chip.reason:
        return ""
    return f"{chip.reason}. {chip.advice}." if chip.advice else f"{chip.reason}."
