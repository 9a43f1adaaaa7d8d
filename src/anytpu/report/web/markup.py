"""HTML and SVG as text in which nothing of a user's can be markup.

Rule: whatever is not `Markup` is escaped, and only `element` makes `Markup` of anything but our own constants.
"""

from __future__ import annotations

import html

_VOID = {"meta", "link", "br", "rect", "circle", "polyline", "line", "path"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Return a text as markup: itself when it is some, else with `<>&"'` escaped and control characters replaced.

    Example:
        >>> escape("a < b"), escape(Markup("<br>"))
        ('a &lt; b', '<br>')
    """
    if isinstance(text, Markup):
        return text
    visible = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in str(text))
    return Markup(html.escape(visible))


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    Args:
        name: "td".
        children: `Markup`, or anything else as text; `None` and `False` are left out.
        attributes: their values; a last underscore is dropped (`class_`), an inner one is a hyphen; `None` and `False`
            leave the attribute out.

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
    """Return parts one after the other, each as `element` takes children."""
    return Markup("".join(escape(part) for part in parts if part is not None and part is not False))


def _attribute(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(escape(str(value)))
