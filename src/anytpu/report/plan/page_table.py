"""The tables of a page that put systems beside each other.

Rule: each cell names its column, so that a narrow window may show a row as a list.
"""

from __future__ import annotations

from anytpu import units
from anytpu.planning.records import Plan, Prediction
from anytpu.report.plan import costs, phrases
from anytpu.report.plan.sweeps import Curve, batch_curves, efficiency, scaling_curves
from anytpu.report.web.markup import Markup, element, joined
from anytpu.report.web.table import meter, table


def systems_table(plan: Plan) -> Markup:
    """Return a row for each system: how fast, how full."""
    titles = ("system", "step time", "examples/s", "MFU", "memory of a device")
    slowest_s = max(
        (phrases.drawn(one.interval_s, one.step_s)[1] for one in plan.predictions if one.interval_s), default=1.0
    )
    rows = [
        (
            _name(one),
            _step(one, slowest_s),
            phrases.most(one, phrases.rate(one.examples_per_s)),
            phrases.percent(one.mfu),
            _memory(one),
        )
        for one in plan.predictions
    ]
    return table(titles, rows, "systems", numbers=(2, 3))


def _name(one: Prediction) -> Markup:
    made_of = f"{phrases.devices(one)} · {one.target.compiler_name}"
    return joined(
        element("a", one.target.name, href=f"#{phrases.anchor(one)}", class_="name"),
        element("small", made_of),
        _flags(one),
    )


def _flags(one: Prediction) -> Markup:
    said = [] if one.fits else ["does not fit"]
    said += {"compiled": [], "extrapolated": ["extrapolated"], "floor": ["a floor, no forecast"]}[one.basis]
    said += phrases.flags(one.cost)
    flags = [element("span", word, class_="flag bad" if word == "does not fit" else "flag") for word in said]
    return element("div", *flags) if flags else joined()


def _step(one: Prediction, slowest_s: float) -> Markup:
    """Return the step time over its interval, drawn on the scale of the slowest system."""
    if one.interval_s is None or one.step_s is None:
        return joined(phrases.UNKNOWN)
    low_s, high_s = phrases.drawn(one.interval_s, one.step_s)
    left, width = 100 * low_s / slowest_s, max(100 * (high_s - low_s) / slowest_s, 0.5)
    span = element("i", class_="between", style=f"left:{left:.2f}%;width:{width:.2f}%")
    point = element("i", class_="point", style=f"left:{100 * one.step_s / slowest_s:.2f}%")
    words = phrases.interval(one.interval_s)
    return joined(
        element("b", phrases.at_least(one, phrases.seconds(one.step_s))),
        element("small", words),
        element("span", span, point, class_="range"),
    )


def _memory(one: Prediction) -> Markup:
    share = phrases.memory_share(one.memory)
    if share is None or one.memory is None:
        return joined(phrases.UNKNOWN)
    peak, limit = units.format_bytes(one.memory.peak_bytes), units.format_bytes(one.memory.limit_bytes)
    words = phrases.least(one, f"{peak} of {limit}") if one.fits else phrases.verdict(one)
    if one.largest_batch is not None:
        words = f"{words}; largest batch {one.largest_batch:,}"
    return joined(
        element("b", phrases.percent(share)),
        element("small", words),
        meter(share, "full" if not one.fits else ""),
    )


def cost_table(plan: Plan) -> Markup:
    """Return a row for each system with a price: an hour, an epoch, a run, on demand and spot."""
    known = costs.columns(plan)
    if not known:
        return joined()
    names = [one.target.name for one in costs.priced(plan)]
    rows = list(zip(names, *(column.cells for column in known), strict=True))
    remarks = [element("li", element("b", f"{names}: "), said) for names, said in phrases.price_remarks(plan)]
    wanted = costs.wanted(plan)
    return joined(
        element("h2", "Cost"),
        table(["system", *(column.long for column in known)], rows, "costs", numbers=range(1, len(known) + 1)),
        element("p", wanted, class_="remark") if wanted else None,
        element("ul", *remarks, class_="remark") if remarks else None,
    )


def holding_table(plan: Plan) -> Markup:
    """Return a row for each slice that would hold what fits nowhere."""
    slices = costs.holding(plan)
    if not slices:
        return joined()
    known = costs.holding_columns(plan)
    rows = list(zip([one.target.name for one in slices], *(column.cells for column in known), strict=True))
    return joined(
        element("h2", "What would hold it"),
        element("p", costs.HOLDING, class_="remark"),
        table(["slice", *(column.long for column in known)], rows, "costs", numbers=range(1, len(known) + 1)),
    )


def sweep_table(plan: Plan) -> Markup:
    """Return the numbers of a sweep, folded: batches of one system, slices of one chip."""
    curves = [*((curve, False) for curve in batch_curves(plan)), *((curve, True) for curve in scaling_curves(plan))]
    return joined(*(_curve(curve, is_scaling) for curve, is_scaling in curves))


def _curve(curve: Curve, is_scaling: bool) -> Markup:
    titles = ("system", "devices", "batch", "step time", "between", "examples/s", "efficiency", "memory")
    rows = [
        (
            one.target.name,
            f"{one.target.devices:,}",
            phrases.count(one.batch_size),
            phrases.at_least(one, phrases.seconds(one.step_s)),
            phrases.interval(one.interval_s),
            phrases.most(one, phrases.rate(one.examples_per_s)),
            phrases.percent(efficiency(curve, one)) if is_scaling else "",
            f"{phrases.percent(phrases.memory_share(one.memory))}{'' if one.fits else ', does not fit'}",
        )
        for one in curve.points
    ]
    title = f"Scaling of {curve.name} in numbers" if is_scaling else f"Batches of {curve.name} in numbers"
    columns = [n for n in range(len(titles)) if is_scaling or titles[n] != "efficiency"]
    kept = [tuple(row[n] for n in columns) for row in rows]
    shown = table([titles[n] for n in columns], kept, "sweep", numbers=range(1, len(columns)))
    return element("details", element("summary", title), shown)
