"""The report of the changes of a training step: a table, how to make each change, and the slices that hold it."""

from __future__ import annotations

from anytpu import units
from anytpu.planning.page.text_table import Remark, TableReport, TextTable
from anytpu.planning.records.changes import ChangedStep, SliceChoice, StepChanges

_TITLES = ("change", "memory", "", "step", "interval", "")


class ChangesReport(TableReport):
    """The renderer of `StepChanges`."""

    def caption(self, record: StepChanges) -> str:
        """Return the job, the system and the batch."""
        batch = f", {record.batch_size:,} examples a step" if record.batch_size else ""
        return f"Changes of {record.job} on {record.target.name}{batch}, predicted"

    def table(self, record: StepChanges) -> TextTable:
        """Return the table of the compiled steps."""
        rows = [_row(row, record.rows[0]) for row in record.rows if row.prediction is not None]
        return TextTable(_TITLES, rows, left=("change",))

    def after(self, record: StepChanges) -> list[Remark]:
        """Return how to make each change, the reasons of the others, and the slices that hold the step."""
        first = record.rows[0].prediction
        limit = first.memory.limit_bytes if first and first.memory else None
        remarks = [Remark(f"A device has {units.format_bytes(limit)}.")] if limit else []
        remarks += [Remark(row.how, f"{row.change}: ") for row in record.rows[1:] if row.prediction is not None]
        for row in record.rows:
            how = f" To make it: {row.how}" if row.reason.startswith("not compiled here") else ""
            remarks += [Remark(f"{row.reason}{how}", f"{row.change}: ")] if row.reason else []
        if record.slices:
            remarks.append(Remark("The smallest slice of each chip that holds it, the lowest price first:"))
        remarks += [Remark(_slice_text(choice), "  ") for choice in record.slices]
        return [*remarks, *map(Remark, record.notes)]


CHANGES_REPORT = ChangesReport()
"""The renderer that `showing.report("changes")` returns."""


def _row(row: ChangedStep, first: ChangedStep) -> list[str]:
    step, interval = "no fit", ""
    if row.batch_s is not None and row.interval_s is not None:
        low_s, high_s = row.interval_s
        step = f"~{units.format_seconds(row.batch_s)}"
        interval = f"{units.format_seconds(low_s)}-{units.format_seconds(high_s)}"
    memory = "" if row.memory_bytes is None else units.format_bytes(row.memory_bytes)
    is_first = row is first
    return [
        row.change,
        memory,
        "" if is_first else _difference(row.memory_bytes, first.memory_bytes),
        step,
        interval,
        "" if is_first else _difference(row.batch_s, first.batch_s),
    ]


def _difference(value: float | None, first: float | None) -> str:
    """Return the relative difference from the first row as text; "" if one of the two is not known."""
    return f"{value / first - 1:+.0%}" if value is not None and first else ""


def _slice_text(choice: SliceChoice) -> str:
    holding = choice.holding
    usd = holding.usd_per_hour
    price = f"${usd:,.2f} an hour" if usd is not None else "no price listed"
    return (
        f"{holding.target.name}, {price}, {choice.change}: about {units.format_bytes(holding.need_bytes)} of "
        f"{units.format_bytes(holding.limit_bytes)} a device"
    )
