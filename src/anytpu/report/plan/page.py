"""A plan as one HTML page: no script, no network, light or dark by the reader's setting.

Rule: the page's content security policy forbids scripts and requests, so text in a user's names cannot run.
"""

from __future__ import annotations

from anytpu.planning.records import Plan
from anytpu.report.drawing import svg
from anytpu.report.plan import costs, phrases
from anytpu.report.plan.page_system import system
from anytpu.report.plan.page_table import cost_table, holding_table, sweep_table, systems_table
from anytpu.report.plan.pictures import common_drawings
from anytpu.report.web import document
from anytpu.report.web.markup import Markup, element, joined


def page(plan: Plan) -> str:
    """Return a plan as the text of an HTML file."""
    sections = [system(prediction, folded=False) for prediction in plan.predictions]
    return document.whole(f"Plan of {plan.job}", _content(plan, sections))


def fragment(plan: Plan) -> str:
    """Return a plan as an HTML fragment with folded systems, for a notebook."""
    sections = [system(prediction, folded=True) for prediction in plan.predictions]
    return document.piece(_content(plan, sections))


def _content(plan: Plan, sections: list[Markup]) -> Markup:
    return joined(
        _header(plan),
        _choices(plan),
        systems_table(plan),
        cost_table(plan),
        holding_table(plan),
        _plots(plan),
        sweep_table(plan),
        *sections,
        _footer(plan),
    )


def _header(plan: Plan) -> Markup:
    return element(
        "header",
        element("h1", plan.job),
        element("p", phrases.subtitle(plan), class_="subtitle"),
        element("p", element("strong", phrases.NOT_MEASURED), f" By {phrases.predictors(plan)}.", class_="predicted"),
    )


def _choices(plan: Plan) -> Markup:
    if not any(prediction.fits for prediction in plan):
        said = "It fits on none of these systems." if len(plan) > 1 else "It does not fit."
        return element("p", said, class_="warning")
    if len(plan) < 2:
        return joined()
    cards = [
        element(
            "div",
            element("div", title.capitalize(), class_="what"),
            element("div", prediction.target.name, class_="name"),
            element("div", why, class_="why"),
            class_="card",
        )
        for title, prediction, why in costs.choice(plan)
    ]
    return element("div", *cards, class_="cards")


def _plots(plan: Plan) -> Markup:
    drawn = common_drawings(plan)
    figures = [element("figure", element("figcaption", drawing.title), svg.inline(drawing)) for drawing in drawn]
    return element("div", *figures, class_="plots") if figures else joined()


def _footer(plan: Plan) -> Markup:
    between = (
        "The step time is expected within the interval beside it. Its width comes from the errors of predictions of "
        "published measurements."
    )
    said = [phrases.MFU_FORMULA, between, phrases.price_source(plan)]
    return element("footer", *(element("p", sentence) for sentence in said if sentence))
