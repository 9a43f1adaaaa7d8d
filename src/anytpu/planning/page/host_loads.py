"""The load of one host of each slice of several hosts, as the rows of a table."""

from __future__ import annotations

from anytpu.planning.page import phrases
from anytpu.planning.records import Plan, Prediction

TITLES = ("system", "hosts", "examples/s", "input", "of network", "to slices", "checkpoint", "write")
"""Titles of the columns; the first is a name, the others are numbers."""


def rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return one row for each slice of several hosts, with a cell for each of `TITLES`.

    Of several batches on a slice the first is shown.
    """
    slices: dict[str, Prediction] = {}
    for prediction in (*plan.predictions, *plan.sweep):
        slices.setdefault(prediction.target.name, prediction)
    return [
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


def has_several_slices(plan: Plan) -> bool:
    """Return whether a host of the table sends bytes to other slices."""
    return any(
        prediction.target.slices > 1 and prediction.host is not None for prediction in (*plan.predictions, *plan.sweep)
    )
