"""A plan as one HTML page: no script, no network, light or dark by the reader's setting.

Rule: the page's content security policy forbids scripts and requests, so text in a user's names cannot run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anytpu.planning.page import content, phrases
from anytpu.planning.page.content import Block, Listed, Named, Sentence, Tabled
from anytpu.planning.page.lists import ListRow
from anytpu.planning.records import Plan, Prediction
from anytpu.report.drawing import svg
from anytpu.report.html import Markup, element, joined, piece, remark, table, whole

_MAX_OPEN_ROWS, _MAX_ROWS = 12, 400


def page(plan: Plan) -> str:
    """Return a plan as the text of an HTML file."""
    return whole(f"Plan of {plan.job}", _content(plan, is_folded=False))


def fragment(plan: Plan) -> str:
    """Return a plan as an HTML fragment with folded systems, for a notebook."""
    return piece(_content(plan, is_folded=True))


def _content(plan: Plan, is_folded: bool) -> Markup:
    links = [element("a", each.target.name, " ", href=f"#{phrases.anchor(each)}") for each in plan.predictions]
    return joined(
        element("header", element("h1", plan.job), element("p", *links, class_="subtitle")),
        *_blocks(content.head(plan)),
        *(_system(prediction, is_folded) for prediction in plan.predictions),
        element("footer", *_blocks(content.tail(plan))),
    )


def _system(prediction: Prediction, is_folded: bool) -> Markup:
    """Return the section of one system, closed until the reader opens it if it is folded."""
    title = (prediction.target.name, element("small", f"{phrases.devices(prediction)} · {phrases.step(prediction)}"))
    memory, took_s = prediction.memory, prediction.compile_s
    shown = joined(
        element("p", memory.said, class_="said") if memory is not None and memory.said else None,
        *_blocks(content.system(prediction, is_full=True)),
        remark(f"Compilation took {phrases.seconds(took_s)}.") if took_s is not None else None,
    )
    if is_folded:
        return element("details", element("summary", *title), shown, id=phrases.anchor(prediction))
    return element("section", element("h2", *title), shown, id=phrases.anchor(prediction))


def _blocks(blocks: Iterable[Block]) -> list[Markup]:
    return [_block(block) for block in blocks]


def _block(block: Block) -> Markup:
    match block:
        case Sentence(text, start, style):
            said = (
                element("b", f"{start[:1].upper() if style == 'bold' else start[:1]}{start[1:]}: ") if start else None
            )
            return element("p", said, _kept(text), class_="remark" if style == "dim" else style or None)
        case Tabled(title, rows, class_, _, is_folded):
            name = f"{title[:1].upper()}{title[1:]}"
            if is_folded:
                return element("details", element("summary", f"{name} in numbers"), rows.to_html(class_))
            return joined(element("h2", name) if title else None, rows.to_html(class_))
        case Listed(title, rows, _, _, below):
            return joined(_heading(title), _folded(rows), remark(_kept(below)) if below else None)
        case Named(title, sentences):
            items = [element("li", *(element("p", _kept(one.text)) for one in each)) for each in sentences]
            class_ = "advice" if title == "advice" else None
            return joined(_heading(title), element("ul", *items, class_=class_)) if items else joined()
        case _:
            drawn = [svg.captioned(drawing) for drawing in block.drawings]
            return element("div", *drawn, class_="plots") if drawn else joined()


def _kept(text: str) -> str:
    """Return a text whose percentages a browser does not break from their signs."""
    return text.replace(" %", "\u00a0%")


def _heading(title: str) -> Markup:
    return element("h3", f"{title[:1].upper()}{title[1:]}")


def _folded(rows: Sequence[ListRow]) -> Markup:
    """Return a table of the first rows, and a closed table of the others."""
    longest = max((sum(length for length, *_ in row.parts) for row in rows), default=0.0) or 1.0
    cells = [_cells(row, longest) for row in rows[:_MAX_ROWS]]
    titles = ("name", "amount")
    first = table(titles, cells[:_MAX_OPEN_ROWS], "list")
    if len(cells) <= _MAX_OPEN_ROWS:
        return first
    kept = f", the first {len(cells) - _MAX_OPEN_ROWS} of them" if len(rows) > len(cells) else ""
    summary = element("summary", f"{len(rows) - _MAX_OPEN_ROWS:,} more{kept}")
    return joined(first, element("details", summary, table(titles, cells[_MAX_OPEN_ROWS:], "list")))


def _cells(row: ListRow, longest: float) -> tuple[Markup, Markup]:
    bars = [
        element("i", class_=f"back-{colour}{' waste' * (opacity < 1)}", style=f"width:{100 * length / longest:.2f}%")
        for length, colour, opacity in row.parts
        if length > 0
    ]
    small = " · ".join(part for part in (row.source, row.hover) if part and part != row.name)
    return (
        joined(
            element("span", " ".join(filter(None, (row.name, row.detail))), class_="word"),
            element("small", small) if small else None,
        ),
        joined(element("b", row.amount), element("small", _kept(row.share)), element("span", *bars, class_="bar")),
    )
