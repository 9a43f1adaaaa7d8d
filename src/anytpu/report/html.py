"""Pages: HTML and SVG text in which a user's text is always escaped, tables and bars, and the frame of a page.

Idea: a page is one HTML file, light or dark by the reader's setting, without network requests.

Rule: everything that is not `Markup` is escaped. Only `escape`, `element` and `joined` make `Markup` of other text than
constants. `whole` and `_style` wrap scripts and styles of this package. A page's content security policy forbids
requests and every script except its own, whose hash it contains. So text in a user's names cannot run as a script.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from pathlib import Path

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_VOID = {"meta", "link", "br", "rect", "circle", "polyline", "line", "path"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Return text as markup: `Markup` unchanged, else with `<>&"'` escaped and control characters replaced.

    Example:
        >>> escape("a < b"), escape(Markup("<br>"))
        ('a &lt; b', '<br>')
    """
    if isinstance(text, Markup):
        return text
    visible = "".join(char if char.isprintable() or char in "\n\t\u00a0" else "\ufffd" for char in str(text))
    return Markup(html.escape(visible))


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    Args:
        name: tag name, such as "td".
        children: `Markup`, or other values as text; `None` and `False` are left out.
        attributes: values by name. A trailing underscore of the name is dropped (`class_`), an inner one becomes a
            hyphen. Attributes that are `None` or `False` are left out.

    Example:
        >>> element("a", "1 < 2", href="#x", class_="big")
        '<a href="#x" class="big">1 &lt; 2</a>'
        >>> element("rect", x=1, stroke_width=2, fill=None)
        '<rect x="1" stroke-width="2"/>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inner = joined(*children)
    return (
        Markup(f"<{name}{written}/>") if name in _VOID and not inner else Markup(f"<{name}{written}>{inner}</{name}>")
    )


def joined(*parts: object) -> Markup:
    """Return the concatenation of parts, with the rules of `element` for children."""
    return Markup("".join(escape(part) for part in parts if part is not None and part is not False))


def _attribute(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(escape(str(value)))


def table(
    titles: Sequence[str], rows: Sequence[Sequence[object]], class_: str = "", numbers: Sequence[int] = ()
) -> Markup:
    """Return a table. Each cell has its column's title, so that a narrow window can show a row as a list.

    Args:
        titles: titles of the columns.
        rows: cells of each row, with the rules of `element` for children.
        class_: CSS class of the table.
        numbers: indices of numeric columns, which are right-aligned.
    """
    right = {column: "number" for column in numbers}
    head = element("tr", *(element("th", title, class_=right.get(n), scope="col") for n, title in enumerate(titles)))
    body = [
        element("tr", *(element("td", cell, class_=right.get(n), data_title=titles[n]) for n, cell in enumerate(row)))
        for row in rows
    ]
    return element("table", element("thead", head), element("tbody", *body), class_=class_ or None)


def stacked(parts: Sequence[tuple[str, float, str, str]], label: str | None = None) -> Markup:
    """Return one bar of several parts, with a legend.

    Args:
        parts: (colour, fraction of the width, name, formatted amount) of each part.
        label: description of the bar for readers who cannot see it.
    """
    pieces = [
        element("i", class_=f"back-{colour}", style=f"width:{100 * share:.3f}%", title=f"{name}: {amount}")
        for colour, share, name, amount in parts
        if share > 0
    ]
    bar = element("div", *pieces, class_="stack", role=label and "img", aria_label=label)
    return joined(bar, legend([(colour, f"{name} ", element("span", amount)) for colour, _, name, amount in parts]))


def legend(entries: Sequence[tuple[str, *tuple[object, ...]]]) -> Markup:
    """Return the legend of a plot: a coloured square and its text for each entry (colour, text, ...)."""
    items = [element("li", element("i", class_=f"back-{colour}"), *text) for colour, *text in entries]
    return element("ul", *items, class_="legend")


def bar_of(parts: Sequence[tuple[str, float]], longest: float) -> Markup:
    """Return a bar of (colour, amount) parts on the scale of the longest bar of a column."""
    pieces = [
        element("i", class_=f"back-{colour}", style=f"width:{100 * amount / longest:.2f}%")
        for colour, amount in parts
        if amount > 0
    ]
    return element("span", *pieces, class_="bar")


def section(anchor: str, title: str, small: str | None, *content: object) -> Markup:
    """Return a section of a page.

    Args:
        anchor: name of the section in links.
        title: title of the section.
        small: text beside the title, or None.
        content: content, with the rules of `element` for children.
    """
    heading = element("h2", title, element("small", small) if small is not None else None)
    return element("section", heading, *content, id=anchor)


def remark(*text: object) -> Markup:
    """Return a paragraph of explanation, less prominent than the content."""
    return element("p", *text, class_="remark")


def cards(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """Return a card for each entry (subject, name or number, explanation)."""
    shown = [
        element(
            "div",
            element("div", subject, class_="what"),
            element("div", name, class_="name"),
            element("div", why, class_="why"),
            class_="card",
        )
        for subject, name, why in entries
    ]
    return element("div", *shown, class_="cards")


def predicted(strong: str, text: str) -> Markup:
    """Return the statement that the numbers of a page are predicted."""
    return element("p", element("strong", strong), text, class_="predicted")


def whole(title: str, content: Markup, style: str = "", script: str = "", renews: bool = False) -> str:
    """Return a page as the text of an HTML file.

    Args:
        title: title of the window.
        content: content of the page.
        style: CSS of this page, after the common CSS.
        script: JavaScript of this page, the only script that its policy allows; "" for none.
        renews: whether the script may ask the page's own server for new content.
    """
    policy = f"{_POLICY}; script-src 'sha256-{_digest(script)}'" if script else _POLICY
    policy += "; connect-src 'self'" if renews else ""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        _style(style),
    )
    body = element(
        "body",
        element("main", content, class_="anytpu-report anytpu-page"),
        element("script", Markup(script)) if script else None,
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def piece(content: Markup, style: str = "") -> Markup:
    """Return content as an HTML fragment for a notebook, without a script."""
    return element("div", _style(style), content, class_="anytpu-report")


def _style(own: str) -> Markup:
    shared = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return element("style", joined(Markup(shared), Markup(own)))


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
