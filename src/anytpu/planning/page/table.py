"""The table of a plan's systems in the terminal: speed and memory; and the remarks on all tables.

Rule: every table fits into 80 columns and has one row per system.
"""

from __future__ import annotations

from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from anytpu.planning.page import costs, phrases
from anytpu.planning.records import Plan, Prediction
from anytpu.report.terminal import bar, compact_table, table_width


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
