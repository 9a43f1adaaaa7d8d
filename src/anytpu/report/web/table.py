"""Tables and meters of a page.

Rule: each cell has its column's title as an attribute, so that a narrow window can show a row as a list.
"""

from __future__ import annotations

from collections.abc import Sequence

from anytpu.report.web.markup import Markup, element


def table(
    titles: Sequence[str], rows: Sequence[Sequence[object]], class_: str = "", numbers: Sequence[int] = ()
) -> Markup:
    """Return a table.

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


def meter(share: float, class_: str = "") -> Markup:
    """Return a bar over a fraction of its width; it is cut at the full width."""
    return element("span", element("i", style=f"width:{100 * min(share, 1):.2f}%"), class_=f"meter {class_}".strip())
