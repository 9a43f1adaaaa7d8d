"""The load of one host of each slice of several hosts, as the rows of a table."""

from __future__ import annotations

from anytpu.planning.page import phrases
from anytpu.planning.page.text_table import TextTable
from anytpu.planning.records import Plan, Prediction

TITLES = ("system", "hosts", "examples/s", "input", "of network", "to slices", "checkpoint", "write")


def table(plan: Plan) -> TextTable | None:
    """Return the table with one row for each slice of several hosts; None if there is no such slice.

    Of several batches on a slice the first is shown.
    """
    slices: dict[str, Prediction] = {}
    for prediction in (*plan.predictions, *plan.sweep):
        slices.setdefault(prediction.target.name, prediction)
    rows = [
        (
            prediction.target.name,
            phrases.count(prediction.target.hosts),
            phrases.most(prediction, phrases.rate(load.examples_per_s)),
            phrases.UNKNOWN if load.input_bytes_per_s is None else f"{phrases.size(load.input_bytes_per_s)}/s",
            phrases.percent(load.input_share),
            phrases.size(load.slices_bytes),
            phrases.size(load.checkpoint_bytes),
            f">= {phrases.seconds(load.checkpoint_s)}" if load.checkpoint_s else phrases.UNKNOWN,
        )
        for prediction in slices.values()
        if (load := prediction.host) is not None
    ]
    return TextTable(TITLES, rows, left=TITLES[:1]) if rows else None


def narrow_table(plan: Plan) -> TextTable | None:
    """Return the table for a terminal of 80 columns, which has room for one of two columns."""
    wide = table(plan)
    has_slices = any(
        prediction.target.slices > 1 and prediction.host is not None for prediction in (*plan.predictions, *plan.sweep)
    )
    return wide and wide.without("of network" if has_slices else "to slices")
