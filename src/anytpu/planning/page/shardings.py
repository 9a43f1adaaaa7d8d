"""The report of the layouts of a job: a table, best first, and the reason for each that was not compiled."""

from __future__ import annotations

from anytpu import units
from anytpu.planning.page.text_table import Remark, TableReport, TextTable
from anytpu.planning.records.shardings import Sharding, Shardings

_TITLES = ("", "layout", "mesh", "step", "interval", "memory", "network", "bound", "cost")
_REMAT = "remat"
_TEXT = ("layout", "mesh", _REMAT, "bound")
_TIMES = {"step", "interval"}


class ShardingsReport(TableReport):
    """The renderer of `Shardings`."""

    def caption(self, record: Shardings) -> str:
        """Return the job and the order."""
        return f"Layouts of {record.job} by the {record.rank} of a step, predicted"

    def table(self, record: Shardings) -> TextTable:
        """Return the table of the compiled layouts; rematerialisation has a column only if one was compiled with it."""
        first, layout, mesh, *others = _TITLES
        titles = [first, layout, mesh, *([_REMAT] if _has_remat(record) else []), *others]
        rows = [
            _row(place, sharding, _is_of_several(record), [sharding.layout.remat or "none"] * _has_remat(record))
            for place, sharding in enumerate(record.candidates, 1)
            if sharding.prediction is not None
        ]
        return TextTable(titles, rows, _TEXT, wrapped=set(titles) - _TIMES)

    def after(self, record: Shardings) -> list[Remark]:
        """Return the meanings of the columns, how to make each layout, and the reasons of the others."""
        remat = "remat: computations that the backward pass repeats. " if _has_remat(record) else ""
        columns = (
            f"{remat}network: share of a step spent on data from other devices. cost: of an epoch if its length is "
            "known, else of a million examples. ~: by the compiler's schedule, without machine code. "
        )
        has_rows = any(sharding.prediction for sharding in record.candidates)
        remarks = [Remark(f"{columns if has_rows else ''}In brackets: estimates without the compiler.")]
        for place, sharding in enumerate(record.candidates, 1):
            if sharding.step_s is not None:
                said = [f"{sharding.split}.", sharding.remat_code, _basis(sharding)]
                remarks.append(Remark(" ".join(filter(None, said)), f"{place:>2}. "))
        reasons: dict[str, list[str]] = {}
        for sharding in record.candidates:
            if sharding.reason:
                estimate = "" if sharding.prediction else f" ({units.format_seconds(sharding.estimate_s)})"
                remat = f", {sharding.layout.remat}" if sharding.layout.remat else ""
                name = f"{_name(sharding, _is_of_several(record))}{remat}{estimate}"
                reasons.setdefault(sharding.reason, []).append(name)
        remarks += [Remark(f"{'; '.join(names)}: {reason}") for reason, names in reasons.items()]
        return [*remarks, *map(Remark, record.notes)]


SHARDINGS_REPORT = ShardingsReport()
"""The renderer that `showing.report("shardings")` returns."""


def _has_remat(record: Shardings) -> bool:
    return any(sharding.prediction is not None and sharding.layout.remat for sharding in record.candidates)


def _is_of_several(record: Shardings) -> bool:
    return len({sharding.target.name for sharding in record.candidates}) > 1


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
