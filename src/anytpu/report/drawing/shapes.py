"""Plots as lists of shapes, independent of the output format: `svg.py` writes them and `files.py` paints them.

Idea: four shapes suffice for all plots. The modules that build plots place shapes; the renderers know only shapes.

Rule: positions are in points from the upper left corner. A colour is a name in `COLOURS`, so that a page can show the
same drawing light or dark.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

COLOURS = {
    "paper": "#ffffff",
    "ink": "#1c2733",
    "muted": "#5d6b7a",
    "grid": "#e3e8ee",
    "c0": "#3d6fd8",
    "c1": "#1f9d94",
    "c2": "#d9930d",
    "c3": "#d9544d",
    "c4": "#9a63d4",
    "c5": "#4c9a3b",
    "c6": "#8592a0",
    "c7": "#a0714f",
}
"""Colours by name, for white paper."""

SERIES = tuple(name for name in COLOURS if name[0] == "c")
"""Colours of series, in the order of their use."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rectangle:
    """A filled rectangle.

    Attributes:
        x: left edge, in points.
        y: upper edge, in points.
        width: width, in points.
        height: height, in points.
        colour: fill colour, a name in `COLOURS`.
        opacity: 0 to 1.
        title: tooltip.
    """

    x: float
    y: float
    width: float
    height: float
    colour: str
    opacity: float = 1.0
    title: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Polyline:
    """A line through points.

    Attributes:
        points: (x, y) of each point.
        colour: stroke colour, a name in `COLOURS`.
        width: stroke width, in points.
        is_dashed: whether the line is dashed.
        title: tooltip.
    """

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1.0
    is_dashed: bool = False
    title: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Dot:
    """A disc or a ring.

    Attributes:
        x: x of the centre, in points.
        y: y of the centre, in points.
        radius: radius, in points.
        colour: colour, a name in `COLOURS`.
        is_hollow: whether it is a ring.
        opacity: 0 to 1.
        title: tooltip.
    """

    x: float
    y: float
    radius: float
    colour: str
    is_hollow: bool = False
    opacity: float = 1.0
    title: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Label:
    """A line of text.

    Attributes:
        x: x of the anchor, in points.
        y: y of the base line, in points.
        text: the text.
        anchor: point of the text at `x`: "start", "middle" or "end".
        colour: colour, a name in `COLOURS`.
        size: font size, in points.
        is_bold: whether the font is bold.
    """

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    colour: str = "ink"
    size: float = 13.0
    is_bold: bool = False


_TITLE_HEIGHT = 36.0

Shape = Rectangle | Polyline | Dot | Label


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A plot.

    Attributes:
        name: name of its file, without the suffix.
        title: title, in a few words.
        summary: description in a sentence, for readers who cannot see the plot.
        width: width, in points.
        height: height, in points.
        shapes: the shapes, in drawing order.
    """

    name: str
    title: str
    summary: str
    width: float
    height: float
    shapes: tuple[Shape, ...]


def titled(drawing: Drawing) -> Drawing:
    """Return a drawing with its title drawn above it, for a separate file."""
    title = Label(12, 24, drawing.title, size=15.0, is_bold=True)
    shapes = (title, *(_lowered(shape, _TITLE_HEIGHT) for shape in drawing.shapes))
    return dataclasses.replace(drawing, height=drawing.height + _TITLE_HEIGHT, shapes=shapes)


def _lowered(shape: Shape, by: float) -> Shape:
    if isinstance(shape, Polyline):
        return dataclasses.replace(shape, points=tuple((x, y + by) for x, y in shape.points))
    return dataclasses.replace(shape, y=shape.y + by)


def text_width(text: str, size: float = 13.0) -> float:
    """Estimate the width of a text in a sans serif font, in points; the estimate errs on the wide side.

    Example:
        >>> text_width("ill") < text_width("MMM")
        True
    """
    narrow, wide = set("iljtfrI.,:;|'()[] "), set("mwMW%@")
    parts = (
        0.36 if letter in narrow else 0.92 if letter in wide else 0.7 if letter.isupper() else 0.6 for letter in text
    )
    return size * sum(parts)


def shortened(text: str, room: float, size: float = 13.0) -> str:
    """Return a text cut to a width, with an ellipsis if it was cut."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(f"{text}...", size) > room:
        text = text[:-1]
    return f"{text}..."
