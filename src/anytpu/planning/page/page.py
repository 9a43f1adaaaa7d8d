"""A plan as one HTML page: no script, no network, light or dark by the reader's setting.

Rule: the page's content security policy forbids scripts and requests, so text in a user's names cannot run.
"""

from __future__ import annotations

from anytpu import units
from anytpu.planning.page import costs, host_loads, phrases
from anytpu.planning.page.page_system import system
from anytpu.planning.page.pictures import common_drawings
from anytpu.planning.page.sweeps import curve_tables
from anytpu.planning.records import Plan, Prediction
from anytpu.report.drawing import svg
from anytpu.report.html import Markup, cards, element, joined, meter, piece, predicted, remark, table, whole


def page(plan: Plan) -> str:
    """Return a plan as the text of an HTML file."""
    sections = [system(prediction, folded=False) for prediction in plan.predictions]
    return whole(f"Plan of {plan.job}", _content(plan, sections))


def fragment(plan: Plan) -> str:
    """Return a plan as an HTML fragment with folded systems, for a notebook."""
    sections = [system(prediction, folded=True) for prediction in plan.predictions]
    return piece(_content(plan, sections))


def _content(plan: Plan, sections: list[Markup]) -> Markup:
    return joined(
        _header(plan),
        _choices(plan),
        _systems_table(plan),
        _cost_table(plan),
        _holding_table(plan),
        _host_table(plan),
        _plots(plan),
        _sweep_table(plan),
        *sections,
        _footer(plan),
    )


def _header(plan: Plan) -> Markup:
    return element(
        "header",
        element("h1", plan.job),
        element("p", phrases.subtitle(plan), class_="subtitle"),
        predicted(phrases.NOT_MEASURED, f" By {phrases.predictors(plan)}."),
    )


def _choices(plan: Plan) -> Markup:
    if not any(prediction.fits for prediction in plan):
        said = "It fits on none of these systems." if len(plan) > 1 else "It does not fit."
        return element("p", said, class_="warning")
    if len(plan) < 2:
        return joined()
    return cards([(title.capitalize(), prediction.target.name, why) for title, prediction, why in costs.choice(plan)])


def _plots(plan: Plan) -> Markup:
    drawn = common_drawings(plan)
    return element("div", *map(svg.captioned, drawn), class_="plots") if drawn else joined()


def _footer(plan: Plan) -> Markup:
    between = (
        "The step time is expected within the interval beside it. Its width comes from the errors of predictions of "
        "published measurements."
    )
    said = [phrases.MFU_FORMULA, between, costs.price_source(plan), phrases.RENTING]
    return element("footer", *(element("p", sentence) for sentence in said if sentence))


def _systems_table(plan: Plan) -> Markup:
    """Return the table of speed and memory, one row per system."""
    titles = ("system", "step time", "examples/s", "MFU", "memory of a device")
    slowest_s = max(
        (
            phrases.drawn(prediction.interval_s, prediction.step_s)[1]
            for prediction in plan.predictions
            if prediction.interval_s
        ),
        default=1.0,
    )
    rows = [
        (
            _name(prediction),
            _step(prediction, slowest_s),
            phrases.most(prediction, phrases.rate(prediction.examples_per_s)),
            phrases.percent(prediction.mfu),
            _memory(prediction),
        )
        for prediction in plan.predictions
    ]
    return table(titles, rows, "systems", numbers=(2, 3))


def _name(prediction: Prediction) -> Markup:
    devices = f"{phrases.devices(prediction)} · {prediction.target.compiler_name}"
    return joined(
        element("a", prediction.target.name, href=f"#{phrases.anchor(prediction)}", class_="name"),
        element("small", devices),
        _flags(prediction),
    )


def _flags(prediction: Prediction) -> Markup:
    said = [] if prediction.fits else ["does not fit"]
    said += {"compiled": [], "extrapolated": ["extrapolated"], "floor": ["a lower bound, not a forecast"]}[
        prediction.basis
    ]
    said += costs.flags(prediction.cost)
    flags = [element("span", word, class_="flag bad" if word == "does not fit" else "flag") for word in said]
    return element("div", *flags) if flags else joined()


def _step(prediction: Prediction, slowest_s: float) -> Markup:
    """Return the step time over its interval, drawn on the scale of the slowest system."""
    if prediction.interval_s is None or prediction.step_s is None:
        return joined(phrases.UNKNOWN)
    low_s, high_s = phrases.drawn(prediction.interval_s, prediction.step_s)
    left, width = 100 * low_s / slowest_s, max(100 * (high_s - low_s) / slowest_s, 0.5)
    span = element("i", class_="between", style=f"left:{left:.2f}%;width:{width:.2f}%")
    point = element("i", class_="point", style=f"left:{100 * prediction.step_s / slowest_s:.2f}%")
    words = phrases.interval(prediction.interval_s)
    return joined(
        element("b", phrases.at_least(prediction, phrases.seconds(prediction.step_s))),
        element("small", words),
        element("span", span, point, class_="range"),
    )


def _memory(prediction: Prediction) -> Markup:
    share = phrases.memory_share(prediction.memory)
    if share is None or prediction.memory is None:
        return joined(phrases.UNKNOWN)
    peak, limit = units.format_bytes(prediction.memory.peak_bytes), units.format_bytes(prediction.memory.limit_bytes)
    words = phrases.least(prediction, f"{peak} of {limit}") if prediction.fits else phrases.verdict(prediction)
    if prediction.largest_batch is not None:
        words = f"{words}; largest batch {prediction.largest_batch:,}"
    return joined(
        element("b", phrases.percent(share)),
        element("small", words),
        meter(share, "full" if not prediction.fits else ""),
    )


def _cost_table(plan: Plan) -> Markup:
    """Return the table of costs with its remarks; empty if no price is known."""
    shown = costs.table(plan)
    if shown is None:
        return joined()
    remarks = [element("li", element("b", f"{names}: "), said) for names, said in costs.price_remarks(plan)]
    wanted = costs.wanted(plan)
    return joined(
        element("h2", "Cost"),
        shown.to_html("costs"),
        remark(wanted) if wanted else None,
        element("ul", *remarks, class_="remark") if remarks else None,
    )


def _holding_table(plan: Plan) -> Markup:
    """Return the table of slices on which the program would fit; empty if it fits on a planned system."""
    shown = costs.holding_table(plan)
    if shown is None:
        return joined()
    return joined(element("h2", "Slices on which it would fit"), remark(costs.HOLDING), shown.to_html("costs"))


def _host_table(plan: Plan) -> Markup:
    """Return the load of one host of each slice of several hosts; empty if there is no such slice."""
    shown = host_loads.table(plan)
    if shown is None:
        return joined()
    return joined(element("h2", "Load of one host"), shown.to_html("hosts"), remark(phrases.HOSTS))


def _sweep_table(plan: Plan) -> Markup:
    """Return the numbers of a sweep as closed tables: batches of one system, slices of one chip."""
    return joined(
        *(
            element("details", element("summary", f"{title.capitalize()} in numbers"), table.to_html("sweep"))
            for title, table in curve_tables(plan)
        )
    )
