"""The report of the layouts of a job: a table, best first, and the reason for each that was not compiled."""

from __future__ import annotations

from rich.text import Text

from anytpu import units
from anytpu.planning.records.shardings import Sharding, Shardings
from anytpu.report.tables import TableReport
from anytpu.report.terminal import compact_table, hang, open_console, say

_TITLES = ("", "layout", "mesh", "step", "interval", "memory", "network", "bound", "cost")
_REMAT = "remat"
_TEXT = ("layout", "mesh", _REMAT, "bound")
_TIMES = {"step", "interval"}


class ShardingsReport(TableReport):
    """The renderer of `Shardings`."""

    no_page = "layouts have no page; plan the best one: tpu.plan(model, layout=found).to_html(path)"
    no_plots = "layouts have no plots; plan the best one: tpu.plan(model, layout=found).to_png(folder)"

    def show(self, record: Shardings) -> None:
        """Print the compiled layouts as a table, if there is one, and the others with their reasons."""
        console = open_console()
        say(console, self.caption(record), style="bold")
        if rows := _rows(record):
            titles = _titles(record)
            table = compact_table(titles, _TEXT, wrapped=set(titles) - _TIMES, overflow="fold")
            for row in rows:
                table.add_row(*row)
            console.print(table)
        for line in _lines(record, console.width):
            console.print(line, soft_wrap=True)

    def caption(self, record: Shardings) -> str:
        """Return the title of the table."""
        return f"Layouts of {record.job} by the {record.rank} of a step, predicted"

    def titles(self, record: Shardings) -> list[str]:
        """Return the titles of the columns."""
        return _titles(record)

    def rows(self, record: Shardings) -> list[list[str]]:
        """Return the cells of each compiled layout."""
        return _rows(record)


SHARDINGS_REPORT = ShardingsReport()
"""The renderer that `showing.report("shardings")` returns."""


def _titles(record: Shardings) -> list[str]:
    """Return the titles of the columns; rematerialisation has one only if a layout was compiled with it."""
    first, layout, mesh, *others = _TITLES
    return [first, layout, mesh, *([_REMAT] if _has_remat(record) else []), *others]


def _has_remat(record: Shardings) -> bool:
    return any(sharding.prediction is not None and sharding.layout.remat for sharding in record.candidates)


def _rows(record: Shardings) -> list[list[str]]:
    """Return the cells of each compiled layout."""
    several = len({sharding.target.name for sharding in record.candidates}) > 1
    return [
        _row(place, sharding, several, [sharding.layout.remat or "none"] if _has_remat(record) else [])
        for place, sharding in enumerate(record.candidates, 1)
        if sharding.prediction is not None
    ]


def _row(place: int, sharding: Sharding, several: bool, remat: list[str]) -> list[str]:
    prediction, share = sharding.prediction, sharding.network_share
    assert prediction is not None
    step, interval, about = "no fit", "", "~" * (sharding.stage == "schedule")
    if prediction.time is not None:
        low_s, high_s = prediction.time.interval_s
        step = f"{about}{units.format_seconds(prediction.time.step_s)}"
        interval = _interval(low_s, high_s)
    return [
        str(place),
        _name(sharding, several),
        sharding.mesh.replace(", ", " "),
        *remat,
        step,
        interval,
        units.format_bytes(prediction.memory.peak_bytes) if prediction.memory else "",
        "" if share is None else f"{share:.0%}",
        sharding.bound,
        _cost(sharding),
    ]


def _name(sharding: Sharding, several: bool) -> str:
    return f"{sharding.layout.name}, {sharding.target.name}" if several else sharding.layout.name


def _interval(low_s: float, high_s: float) -> str:
    """Return the bounds of a time as text, with one unit if they share it."""
    low, high = units.format_seconds(low_s), units.format_seconds(high_s)
    number, _, unit = low.partition(" ")
    return f"{number}-{high}" if high.endswith(f" {unit}") else f"{low}-{high}"


def _cost(sharding: Sharding) -> str:
    cost = sharding.prediction.cost if sharding.prediction else None
    if cost is None or sharding.prediction is None or sharding.step_s is None:
        return ""
    if cost.usd_per_epoch is not None:
        return f"${cost.usd_per_epoch:,.2f}"
    batch_size = sharding.prediction.batch_size
    if not cost.usd_per_step or not batch_size:
        return ""
    usd = 1e6 * cost.usd_per_step / batch_size
    return f"${usd:,.2f}" if usd >= 0.1 else f"${usd:.2g}"


def _basis(sharding: Sharding) -> str:
    """Return a sentence on a time that is extrapolated; "" for a compiled one."""
    prediction = sharding.prediction
    if prediction is None or prediction.basis != "extrapolated":
        return ""
    return next((note for note in prediction.notes if note.startswith("Extrapolated")), "")


def _lines(record: Shardings, width: int) -> list[Text]:
    remat = "remat: computations that the backward pass repeats. " if _has_remat(record) else ""
    columns = (
        f"{remat}network: share of a step spent on data from other devices. cost: of an epoch if its length is known, "
        "else of a million examples. ~: by the compiler's schedule, without machine code. "
    )
    has_rows = any(sharding.prediction for sharding in record.candidates)
    lines = hang("", f"{columns if has_rows else ''}In brackets: estimates without the compiler.", width)
    for place, sharding in enumerate(record.candidates, 1):
        if sharding.step_s is not None:
            said = [f"{sharding.split}.", sharding.remat_code, _basis(sharding)]
            lines += hang(f"{place:>2}. ", " ".join(filter(None, said)), width)
    several = len({sharding.target.name for sharding in record.candidates}) > 1
    reasons: dict[str, list[str]] = {}
    for sharding in record.candidates:
        if sharding.reason:
            estimate = "" if sharding.prediction else f" ({units.format_seconds(sharding.estimate_s)})"
            remat = f", {sharding.layout.remat}" if sharding.layout.remat else ""
            reasons.setdefault(sharding.reason, []).append(f"{_name(sharding, several)}{remat}{estimate}")
    for reason, names in reasons.items():
        lines += hang("", f"{'; '.join(names)}: {reason}", width)
    for note in record.notes:
        lines += hang("", note, width)
    return [Text(line) for line in lines]
