"""The report of the changes of a training step: a table, how to make each change, and the slices that hold it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from anytpu import units
from anytpu.planning.records.changes import ChangedStep, SliceChoice, StepChanges
from anytpu.report.tables import TableReport
from anytpu.report.terminal import compact_table, hang, open_console, say

_TITLES = ("change", "memory", "", "step", "interval", "")


class ChangesReport(TableReport):
    """The renderer of `StepChanges`."""

    no_page = "changes have no page; write their numbers: changes.to_json(path)"
    no_plots = "changes have no plots; write their numbers: changes.to_json(path)"

    def show(self, record: StepChanges) -> None:
        """Print the compiled steps as a table, then the others with their reasons, and the slices."""
        console = open_console()
        say(console, _title(record), style="bold")
        table = compact_table(_TITLES, left=("change",))
        for row in _rows(record):
            table.add_row(*row)
        console.print(table)
        for line in _lines(record, console.width):
            console.print(line, soft_wrap=True)

    def caption(self, record: StepChanges) -> str:
        """Return the title of the table."""
        return _title(record)

    def titles(self, record: StepChanges) -> Sequence[str]:
        """Return the titles of the columns."""
        return _TITLES

    def rows(self, record: StepChanges) -> list[list[str]]:
        """Return the cells of each compiled step."""
        return _rows(record)


CHANGES_REPORT = ChangesReport()
"""The renderer that `showing.report("changes")` returns."""


def _title(record: StepChanges) -> str:
    batch = f", {record.batch_size:,} examples a step" if record.batch_size else ""
    return f"Changes of {record.job} on {record.target.name}{batch}, predicted"


def _rows(record: StepChanges) -> list[list[str]]:
    """Return the cells of each compiled step."""
    first = record.rows[0]
    return [_row(row, first) for row in record.rows if row.prediction is not None]


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


def _lines(record: StepChanges, width: int) -> list[Text]:
    limit = record.rows[0].prediction.memory if record.rows[0].prediction else None
    lines = hang("", f"A device has {units.format_bytes(limit.limit_bytes)}.", width) if limit else []
    for row in record.rows[1:]:
        if row.prediction is not None:
            lines += hang(f"{row.change}: ", row.how, width)
    for row in record.rows:
        if row.reason:
            how = f" To make it: {row.how}" if row.reason.startswith("not compiled here") else ""
            lines += hang(f"{row.change}: ", f"{row.reason}{how}", width)
    if record.slices:
        lines += hang("", "The smallest slice of each chip that holds it, the lowest price first:", width)
    for choice in record.slices:
        lines += hang("  ", _slice_text(choice), width)
    for note in record.notes:
        lines += hang("", note, width)
    return [Text(line) for line in lines]


def _slice_text(choice: SliceChoice) -> str:
    holding = choice.holding
    usd = holding.usd_per_hour
    price = f"${usd:,.2f} an hour" if usd is not None else "no price listed"
    return (
        f"{holding.target.name}, {price}, {choice.change}: about {units.format_bytes(holding.need_bytes)} of "
        f"{units.format_bytes(holding.limit_bytes)} a device"
    )
