"""Rendering of a drawing as SVG, with text as text.

Idea: each colour is written twice, as a CSS class and as the colour for white paper. A file is correct without CSS; a
page that inlines the drawing overrides the classes in dark mode.
"""

from __future__ import annotations

from anytpu.report.drawing.shapes import COLOURS, Dot, Drawing, Label, Polyline, Rectangle, Shape
from anytpu.report.html import Markup, element, joined

FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
"""Fonts of pages and drawings: those of the reader's system."""


def inline(drawing: Drawing) -> Markup:
    """Return a drawing as an element that fills the available width, up to the drawing's own width."""
    return _svg(drawing, drawing.shapes, class_="plot", style=f"max-width:{drawing.width:g}px")


def either(wide: Drawing, narrow: Drawing | None) -> Markup:
    """Return a drawing for a page, with an alternative for windows as narrow as a telephone."""
    if narrow is None:
        return inline(wide)
    return joined(
        element("div", inline(wide), class_="wide"),
        element("div", inline(narrow), class_="narrow"),
    )


def captioned(drawing: Drawing | None) -> Markup:
    """Return a drawing below its title; nothing for None."""
    return element("figure", element("figcaption", drawing.title), inline(drawing)) if drawing else joined()


def figure(drawing: Drawing | None, narrow: Drawing | None) -> Markup:
    """Return a drawing, or its alternative for a telephone, below its title as a heading; nothing for None."""
    return element("figure", element("h3", drawing.title), either(drawing, narrow)) if drawing else joined()


def document(drawing: Drawing) -> str:
    """Return a drawing as the text of an SVG file."""
    paper = Rectangle(0, 0, drawing.width, drawing.height, "paper")
    size = {"width": f"{drawing.width:g}", "height": f"{drawing.height:g}"}
    svg = _svg(drawing, (paper, *drawing.shapes), xmlns="http://www.w3.org/2000/svg", **size)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{svg}\n'


def _svg(drawing: Drawing, shapes: tuple[Shape, ...], **attributes: str) -> Markup:
    return element(
        "svg",
        element("title", drawing.title),
        element("desc", drawing.summary),
        *(_shape(shape) for shape in shapes),
        viewBox=f"0 0 {drawing.width:g} {drawing.height:g}",
        role="img",
        font_family=FONT,
        **attributes,
    )


def _shape(shape: Shape) -> Markup:
    if isinstance(shape, Rectangle):
        return _box(shape)
    if isinstance(shape, Polyline):
        return _line(shape)
    if isinstance(shape, Dot):
        return _dot(shape)
    return _label(shape)


def _box(box: Rectangle) -> Markup:
    place = {"x": box.x, "y": box.y, "width": box.width, "height": box.height, "rx": 1.5}
    return element("rect", _title(box.title), **place, **_filled(box.colour), opacity=_opacity(box.opacity))


def _line(line: Polyline) -> Markup:
    points = " ".join(f"{x:.5g},{y:.5g}" for x, y in line.points)
    return element(
        "polyline",
        _title(line.title),
        points=points,
        fill="none",
        **_stroked(line.colour),
        stroke_width=line.width,
        stroke_linejoin="round",
        stroke_dasharray="5 4" if line.is_dashed else None,
    )


def _dot(dot: Dot) -> Markup:
    place = {"cx": dot.x, "cy": dot.y, "r": dot.radius}
    ring = {"fill": "none", **_stroked(dot.colour), "stroke_width": 2.0}
    paint = ring if dot.is_hollow else _filled(dot.colour)
    return element("circle", _title(dot.title), **place, **paint, opacity=_opacity(dot.opacity))


def _label(label: Label) -> Markup:
    return element(
        "text",
        label.text,
        x=label.x,
        y=label.y,
        text_anchor=label.anchor if label.anchor != "start" else None,
        font_size=label.size,
        font_weight=600 if label.is_bold else None,
        **_filled(label.colour),
    )


def _title(text: str) -> Markup:
    return element("title", text) if text else joined()


def _filled(colour: str) -> dict[str, str]:
    return {"class_": f"fill-{colour}", "fill": COLOURS[colour]}


def _stroked(colour: str) -> dict[str, str]:
    return {"class_": f"stroke-{colour}", "stroke": COLOURS[colour]}


def _opacity(opacity: float) -> float | None:
    return opacity if opacity < 1 else None
