"""HTML and SVG text in which a user's text is always escaped.

Rule: everything that is not `Markup` is escaped. Only `element` turns other text than constants into `Markup`.
"""

from __future__ import annotations

import html

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
    visible = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in str(text))
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
