"""The systems of a plan beside each other, in the terminal: how fast, how full, how dear.

Rule: 80 columns hold every table, and each table a row for each system.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table
from rich.text import Text

from anytpu.planning.records import Plan, Prediction
from anytpu.report.comparison import bar
from anytpu.report.plan import phrases
from anytpu.report.plan.sweeps import Curve, batch_curves, efficiency, scaling_curves

_BAR_WIDTH = 6


def speed_table(predictions: Iterable[Prediction], ascii_only: bool = False) -> Table:
    """Return how fast each system would be and how much of its memory is used.

    Args:
        predictions: what to show, a row each.
        ascii_only: draw with # in place of blocks.
    """
    shown = _table("system", "slice", right=("step", "between", "examples/s", "MFU"))
    shown.add_column("memory", no_wrap=True)
    for one in predictions:
        shown.add_row(
            one.target.name,
            one.target.compiler_name,
            phrases.seconds(one.step_s),
            phrases.interval(one.interval_s),
            phrases.rate(one.examples_per_s),
            phrases.percent(one.mfu),
            memory_bar(one, ascii_only),
        )
    return shown


def memory_bar(one: Prediction, ascii_only: bool = False, width: int = _BAR_WIDTH) -> Text:
    """Return how full the memory of a device is, as a bar and a number; a full bar in red does not fit."""
    share = phrases.memory_share(one.memory)
    if share is None:
        return Text(phrases.UNKNOWN)
    filled = bar(min(share, 1.0), width, ascii_only)
    text = Text(filled, "green" if one.fits else "red")
    return text.append(f"{' ' * (width - len(filled))} {phrases.percent(share):>5}", "" if one.fits else "red")


def cost_table(plan: Plan) -> Table | None:
    """Return what each system costs, or None where nothing is known of any price."""
    priced = [one for one in plan.predictions if one.cost is not None]
    if not priced:
        return None
    whole = "run" if any(one.cost and one.cost.usd_per_run for one in priced) else "step"
    shown = _table("system", right=("$/hour", "$/epoch", f"$/{whole}", "time", "spot $", "time", "save every"))
    for one in priced:
        cost = one.cost
        assert cost is not None
        shown.add_row(
            one.target.name,
            phrases.usd(cost.usd_per_hour),
            phrases.usd(cost.usd_per_epoch),
            phrases.usd(cost.usd_per_run if whole == "run" else cost.usd_per_step),
            phrases.seconds(cost.run_s),
            phrases.usd(cost.spot_usd_per_run),
            phrases.seconds(cost.spot_run_s),
            phrases.seconds(cost.checkpoint_every_s),
        )
    return shown


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
            phrases.seconds(one.step_s),
            phrases.interval(one.interval_s),
            phrases.rate(one.examples_per_s),
            phrases.percent(efficiency(curve, one) if is_scaling else one.mfu),
            Text(phrases.percent(phrases.memory_share(one.memory)), "" if one.fits else "red"),
        )
    return shown


def remarks(plan: Plan) -> list[tuple[str, str]]:
    """Return what has to be said beside the tables, each as (system, sentence)."""
    said = []
    for one in plan.predictions:
        if not one.fits:
            said.append((one.target.name, phrases.shortage(one)))
        elif one.largest_batch is not None:
            said.append((one.target.name, f"the largest batch that fits is {one.largest_batch:,}."))
        said += [(one.target.name, note) for note in one.notes]
    return [*said, *phrases.price_remarks(plan)]


def chosen_lines(plan: Plan) -> list[Text]:
    """Return the fastest and the cheapest system that fit, a line each."""
    lines = [
        Text(f"{what} ").append(phrases.one_line(one.target.name), "bold").append(f", {why}")
        for what, one, why in phrases.choice(plan)
        if len(plan) > 1
    ]
    if len(plan) and plan.fastest is None:
        lines.append(Text("it fits on none of them" if len(plan) > 1 else "it does not fit", "red"))
    return lines


def _table(*left: str, right: tuple[str, ...]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title in left:
        shown.add_column(title, no_wrap=True)
    for title in right:
        shown.add_column(title, justify="right", no_wrap=True)
    return shown
