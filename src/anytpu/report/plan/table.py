"""The systems of a plan beside each other, in the terminal: how fast, how full, how dear.

Rule: 80 columns hold every table, and each table a row for each system.
"""

from __future__ import annotations

from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from anytpu.planning.records import Plan, Prediction
from anytpu.report.comparison import bar
from anytpu.report.plan import costs, phrases
from anytpu.report.plan.sweeps import Curve, batch_curves, efficiency, scaling_curves

_COSTS_WIDTH = 72
"""The columns of a terminal of 80 that are left beside the names of systems."""


class _Form(NamedTuple):
    """Which columns a table has room for."""

    has_slice: bool
    bar_width: int
    has_sizes: bool


_FORMS = (
    _Form(True, 6, True),
    _Form(False, 6, True),
    _Form(False, 4, True),
    _Form(False, 0, True),
    _Form(True, 6, False),
    _Form(False, 6, False),
)


def speed_table(plan: Plan, width: int = 80, ascii_only: bool = False) -> Table:
    """Return how fast each system would be and how much of its memory is used, with as much as there is room for.

    Args:
        plan: what to show, a row for each system.
        width: columns of the terminal.
        ascii_only: draw with # in place of blocks.
    """
    tables = (_speeds(plan, form, ascii_only) for form in _FORMS)
    fitting = (table for table in tables if _width(table) <= width)
    return next(fitting, None) or _speeds(plan, _FORMS[-1], ascii_only)


def _speeds(plan: Plan, form: _Form, ascii_only: bool) -> Table:
    slices = ("slice",) if form.has_slice else ()
    shown = _table("system", *slices, right=("step", "between", "examples/s", "MFU"))
    shown.add_column("memory", no_wrap=True)
    for one in plan.predictions:
        shown.add_row(
            one.target.name,
            *([one.target.compiler_name] if form.has_slice else []),
            phrases.at_least(one, phrases.seconds(one.step_s)),
            phrases.interval(one.interval_s),
            phrases.most(one, phrases.rate(one.examples_per_s)),
            phrases.percent(one.mfu),
            _memory(one, form, ascii_only),
        )
    return shown


def _width(table: Table) -> int:
    console = Console(width=1000)
    return Measurement.get(console, console.options, table).maximum


def _memory(one: Prediction, form: _Form, ascii_only: bool) -> Text:
    """Return how full the memory of a device is: a bar, a number, sizes; red where it does not fit."""
    share, red = phrases.memory_share(one.memory), "" if one.fits else "red"
    if share is None or one.memory is None:
        return Text(phrases.UNKNOWN)
    text = Text()
    if form.bar_width:
        filled = bar(min(share, 1.0), form.bar_width, ascii_only)
        text.append(f"{filled:<{form.bar_width}} ", red or "green")
    text.append(f"{phrases.least(one, phrases.percent(share)):>5}", red)
    return text.append(f"  {phrases.used(one.memory)}", red) if form.has_sizes else text


def cost_table(plan: Plan) -> Table | None:
    """Return what each system costs, or None where nothing is known of any price."""
    known = costs.columns(plan)
    if not known:
        return None
    # Better a column less than amounts cut short; the page has them all.
    while sum(_room(column) for column in known) > _COSTS_WIDTH:
        known = known[:-1]
    shown = _table("system", right=tuple(column.short for column in known))
    for one, *cells in zip(costs.priced(plan), *(column.cells for column in known), strict=True):
        shown.add_row(one.target.name, *cells)
    return shown


def holding_table(plan: Plan) -> Table | None:
    """Return the slices that would hold what fits nowhere, or None."""
    slices = costs.holding(plan)
    if not slices:
        return None
    known = costs.holding_columns(plan)
    shown = _table("slice", right=tuple(column.short for column in known))
    for one, *cells in zip(slices, *(column.cells for column in known), strict=True):
        shown.add_row(one.target.name, *cells)
    return shown


def _room(column: costs.Column) -> int:
    """Return the width of a column with the space before it."""
    return 2 + max(len(text) for text in (column.short, *column.cells))


def sweep_tables(plan: Plan) -> list[tuple[str, Table]]:
    """Return the numbers of a sweep, each as (title, table): batches of one system, slices of one chip."""
    batches = [(f"batches of {curve.name}", _curve_table(curve, False)) for curve in batch_curves(plan)]
    return [*batches, *((f"scaling of {curve.name}", _curve_table(curve, True)) for curve in scaling_curves(plan))]


def _curve_table(curve: Curve, is_scaling: bool) -> Table:
    name = ("system",) if is_scaling else ()
    last = "of ideal" if is_scaling else "MFU"
    shown = _table(*name, right=("batch", "step", "between", "examples/s", last, "memory"))
    for one in curve.points:
        shown.add_row(
            *([one.target.name] if is_scaling else []),
            phrases.count(one.batch_size),
            phrases.at_least(one, phrases.seconds(one.step_s)),
            phrases.interval(one.interval_s),
            phrases.most(one, phrases.rate(one.examples_per_s)),
            phrases.percent(efficiency(curve, one) if is_scaling else one.mfu),
            Text(phrases.percent(phrases.memory_share(one.memory)), "" if one.fits else "red"),
        )
    return shown


def remarks(plan: Plan) -> list[tuple[str, str]]:
    """Return what has to be said beside the tables, each as (systems, sentence)."""
    said: dict[str, list[str]] = {}
    for one in plan.predictions:
        if not one.fits:
            said.setdefault(phrases.shortage(one), []).append(one.target.name)
        elif one.largest_batch is not None:
            sentence = f"the largest batch that fits is {one.largest_batch:,}."
            said.setdefault(sentence, []).append(one.target.name)
        for note in one.notes:
            said.setdefault(note, []).append(one.target.name)
    return [*((", ".join(names), sentence) for sentence, names in said.items()), *phrases.price_remarks(plan)]


def chosen_lines(plan: Plan) -> list[Text]:
    """Return the fastest and the cheapest system that fit, a line each."""
    lines = [
        Text(f"{what} ").append(phrases.one_line(one.target.name), "bold").append(f", {why}")
        for what, one, why in costs.choice(plan)
        if len(plan) > 1
    ]
    if len(plan) and not any(one.fits for one in plan):
        lines.append(Text("it fits on none of them" if len(plan) > 1 else "it does not fit", "red"))
    return lines


def _table(*left: str, right: tuple[str, ...]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title in left:
        shown.add_column(title, no_wrap=True)
    for title in right:
        shown.add_column(title, justify="right", no_wrap=True)
    return shown
