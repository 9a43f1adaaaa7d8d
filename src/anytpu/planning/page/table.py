"""Comparison tables of a plan's systems in the terminal: speed, memory, cost.

Rule: every table fits into 80 columns and has one row per system.
"""

from __future__ import annotations

from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from anytpu.planning.page import costs, host_loads, phrases
from anytpu.planning.page.sweeps import Curve, batch_curves, efficiency, scaling_curves
from anytpu.planning.records import Plan, Prediction
from anytpu.report.terminal import bar, compact_table, table_width

_COSTS_WIDTH = 72
"""Width available for costs in a terminal of 80 columns, beside the names of systems."""


class _SpeedTableForm(NamedTuple):
    """The columns of a speed table.

    Attributes:
        has_slice: whether the table has the compiler's name of the slice.
        bar_width: width of the memory bar in characters; 0: no bar.
        has_sizes: whether it shows the used and available memory.
    """

    has_slice: bool
    bar_width: int
    has_sizes: bool


_FORMS = (
    _SpeedTableForm(True, 6, True),
    _SpeedTableForm(False, 6, True),
    _SpeedTableForm(False, 4, True),
    _SpeedTableForm(False, 0, True),
    _SpeedTableForm(True, 6, False),
    _SpeedTableForm(False, 6, False),
)


def speed_table(plan: Plan, width: int = 80) -> Table:
    """Return the predicted speed and memory use of each system, with the largest form that fits.

    Args:
        plan: the plan to show, one row per system.
        width: columns of the terminal.
    """
    tables = [_speeds(plan, form) for form in _FORMS]
    return next((table for table in tables if table_width(table) <= width), tables[-1])


def _speeds(plan: Plan, form: _SpeedTableForm) -> Table:
    names = ("system", "slice") if form.has_slice else ("system",)
    shown = compact_table([*names, "step", "between", "examples/s", "MFU", "memory"], left=(*names, "memory"))
    for prediction in plan.predictions:
        shown.add_row(
            prediction.target.name,
            *([prediction.target.compiler_name] if form.has_slice else []),
            phrases.at_least(prediction, phrases.seconds(prediction.step_s)),
            phrases.interval(prediction.interval_s),
            phrases.most(prediction, phrases.rate(prediction.examples_per_s)),
            phrases.percent(prediction.mfu),
            _memory(prediction, form),
        )
    return shown


def _memory(prediction: Prediction, form: _SpeedTableForm) -> Text:
    """Return the used memory of a device as a bar, a percentage and sizes; red if it does not fit."""
    share, red = phrases.memory_share(prediction.memory), "" if prediction.fits else "red"
    if share is None or prediction.memory is None:
        return Text(phrases.UNKNOWN)
    text = Text()
    if form.bar_width:
        text.append(f"{bar(min(share, 1.0), form.bar_width):<{form.bar_width}} ", red or "green")
    text.append(f"{phrases.least(prediction, phrases.percent(share)):>5}", red)
    return text.append(f"  {phrases.used(prediction.memory)}", red) if form.has_sizes else text


def cost_table(plan: Plan) -> Table | None:
    """Return the cost of each system, or None if no price is known."""
    known = costs.columns(plan)
    # Drop columns rather than truncate amounts; the page has all columns.
    while sum(_room(column) for column in known) > _COSTS_WIDTH:
        known = known[:-1]
    return _amounts("system", [prediction.target.name for prediction in costs.priced(plan)], known)


def holding_table(plan: Plan) -> Table | None:
    """Return the slices on which the program would fit; None if it fits on a planned system."""
    return _amounts("slice", [slice_.target.name for slice_ in costs.holding(plan)], costs.holding_columns(plan))


def _amounts(title: str, names: list[str], columns: list[costs.CostColumn]) -> Table | None:
    if not columns:
        return None
    shown = compact_table([title, *(column.short for column in columns)], left=(title,))
    for row in zip(names, *(column.cells for column in columns), strict=True):
        shown.add_row(*row)
    return shown


def _room(column: costs.CostColumn) -> int:
    """Return the width of a column, including the space before it."""
    return 2 + max(len(text) for text in (column.short, *column.cells))


def sweep_tables(plan: Plan) -> list[tuple[str, Table]]:
    """Return the tables of a sweep, each as (title, table): batches of one system, slices of one chip."""
    batches = [(f"batches of {curve.name}", _curve_table(curve, False)) for curve in batch_curves(plan)]
    return [*batches, *((f"scaling of {curve.name}", _curve_table(curve, True)) for curve in scaling_curves(plan))]


def _curve_table(curve: Curve, is_scaling: bool) -> Table:
    name = ("system",) if is_scaling else ()
    last = "of ideal" if is_scaling else "MFU"
    shown = compact_table([*name, "batch", "step", "between", "examples/s", last, "memory"], left=name)
    for prediction in curve.points:
        shown.add_row(
            *([prediction.target.name] if is_scaling else []),
            phrases.count(prediction.batch_size),
            phrases.at_least(prediction, phrases.seconds(prediction.step_s)),
            phrases.interval(prediction.interval_s),
            phrases.most(prediction, phrases.rate(prediction.examples_per_s)),
            phrases.percent(efficiency(curve, prediction) if is_scaling else prediction.mfu),
            Text(phrases.percent(phrases.memory_share(prediction.memory)), "" if prediction.fits else "red"),
        )
    return shown


def host_table(plan: Plan) -> Table | None:
    """Return the load of one host of each slice of several hosts; None if there is no such slice."""
    rows = host_loads.rows(plan)
    if not rows:
        return None
    # A table of 80 columns has room for one of the two.
    left_out = host_loads.TITLES.index("of network" if host_loads.has_several_slices(plan) else "to slices")
    titles = _without(host_loads.TITLES, left_out)
    shown = compact_table(titles, left=titles[:1])
    for row in rows:
        shown.add_row(*_without(row, left_out))
    return shown


def _without(cells: tuple[str, ...], index: int) -> tuple[str, ...]:
    return (*cells[:index], *cells[index + 1 :])


def remarks(plan: Plan) -> list[tuple[str, str]]:
    """Return the remarks on the tables, each as (systems, sentence)."""
    said: dict[str, list[str]] = {}
    for prediction in plan.predictions:
        if layout := phrases.layout(prediction):
            said.setdefault(layout, []).append(prediction.target.name)
        if not prediction.fits:
            said.setdefault(phrases.shortage(prediction), []).append(prediction.target.name)
        elif prediction.largest_batch is not None:
            sentence = f"the largest batch that fits is {prediction.largest_batch:,}."
            said.setdefault(sentence, []).append(prediction.target.name)
        for note in prediction.notes:
            said.setdefault(note, []).append(prediction.target.name)
    return [*((", ".join(names), sentence) for sentence, names in said.items()), *costs.price_remarks(plan)]


def chosen_lines(plan: Plan) -> list[Text]:
    """Return a line each for the fastest and the cheapest system that fit."""
    lines = [
        Text(f"{title} ").append(phrases.one_line(prediction.target.name), "bold").append(f", {why}")
        for title, prediction, why in costs.choice(plan)
        if len(plan) > 1
    ]
    if len(plan) and not any(prediction.fits for prediction in plan):
        lines.append(Text("it fits on none of them" if len(plan) > 1 else "it does not fit", "red"))
    return lines
