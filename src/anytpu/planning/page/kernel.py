"""The report of a kernel's check: its results, and a table with a row for each chip."""

from __future__ import annotations

from anytpu import units
from anytpu.planning.page.text_table import Remark, TableReport, TextTable
from anytpu.planning.records.kernels import KernelCheck, KernelOnChip

_TITLES = ("system", "compiled", "VMEM", "time", "between", "bound", "around it")
_MEANING = (
    "time: of the kernel on one device, predicted from its own code times its grid; around it: of the other "
    "operations of the function."
)


class KernelReport(TableReport):
    """The renderer of `KernelCheck`."""

    def caption(self, record: KernelCheck) -> str:
        """Return the kernel and its inputs."""
        return f"{record.name}, {record.inputs}"

    def before(self, record: KernelCheck) -> list[Remark]:
        """Return the grids, and the results of the interpreter."""
        texts = [" x ".join("?" if size is None else f"{size:,}" for size in grid.grid) or "1" for grid in record.grids]
        grids = [
            Remark(f"{grid.name}, grid {text}", is_dim=True) for grid, text in zip(record.grids, texts, strict=True)
        ]
        return [*grids, Remark(results_text(record), "results: ")]

    def table(self, record: KernelCheck) -> TextTable:
        """Return the table with a row for each chip."""
        return TextTable(_TITLES, [_cells(chip) for chip in record], left=("system", "bound"))

    def after(self, record: KernelCheck) -> list[Remark]:
        """Return the compilers' errors with advice, and the meanings of the columns."""
        troubles = [Remark(_trouble(chip), f"{chip.target.name}: ") for chip in record if chip.reason]
        return [*troubles, Remark(_MEANING, is_dim=True)]


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
    return f"{chip.reason}. {chip.advice}." if chip.advice else f"{chip.reason}."
