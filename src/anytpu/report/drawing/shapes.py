"""A plot as shapes on a sheet: what `svg.py` writes and `png.py` paints.

Idea: four shapes are all that our plots need. Who makes a plot places them; who draws it knows no plots.

Rule: positions are in points from the upper left corner. A colour is a name of `COLOURS`, so that a page may show the
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
"""Names of colours, and what each is on white paper."""

SERIES = tuple(name for name in COLOURS if name[0] == "c")
"""The colours of series, in the order in which they are given out."""


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle.

    Attributes:
        x: left edge.
        y: upper edge.
        width: to the right.
        height: down.
        colour: of the filling.
        opacity: 0 to 1.
        title: what is said of it when it is pointed at.
    """

    x: float
    y: float
    width: float
    height: float
    colour: str
    opacity: float = 1.0
    title: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line through points.

    Attributes:
        points: (x, y) of each.
        colour: of the line.
        width: its thickness.
        is_dashed: whether it has gaps.
        title: what is said of it when it is pointed at.
    """

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1.0
    is_dashed: bool = False
    title: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Dot:
    """A disc, or a ring where it is hollow.

    Attributes:
        x: of its centre.
        y: of its centre.
        radius: its size.
        colour: of the disc or the ring.
        is_hollow: a ring.
        opacity: 0 to 1.
        title: what is said of it when it is pointed at.
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
        x: where it starts, has its middle, or ends, by `anchor`.
        y: its base line.
        text: what it says.
        anchor: "start", "middle" or "end".
        colour: of the letters.
        size: of the letters.
        is_bold: thicker.
        is_upright: turned by a quarter, to be read from below.
    """

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    colour: str = "ink"
    size: float = 13.0
    is_bold: bool = False
    is_upright: bool = False


_TITLE_HEIGHT = 36.0

Shape = Box | Line | Dot | Label


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A plot.

    Attributes:
        name: of its file, without the suffix.
        title: what it shows, in a few words.
        summary: what can be read off it, in a sentence, for who cannot see it.
        width: of the sheet.
        height: of the sheet.
        shapes: what lies on it, from the lowest to the uppermost.
    """

    name: str
    title: str
    summary: str
    width: float
    height: float
    shapes: tuple[Shape, ...]


def titled(drawing: Drawing) -> Drawing:
    """Return a drawing with its title on it, for where nothing else says what it shows."""
    title = Label(12, 24, drawing.title, size=15.0, is_bold=True)
    shapes = (title, *(_lowered(shape, _TITLE_HEIGHT) for shape in drawing.shapes))
    return dataclasses.replace(drawing, height=drawing.height + _TITLE_HEIGHT, shapes=shapes)


def _lowered(shape: Shape, by: float) -> Shape:
    if isinstance(shape, Line):
        return dataclasses.replace(shape, points=tuple((x, y + by) for x, y in shape.points))
    return dataclasses.replace(shape, y=shape.y + by)


def text_width(text: str, size: float = 13.0) -> float:
    """Return about how wide a text is in a sans serif, rather too wide than too narrow.

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
    """Return a text that fits into a width, with an ellipsis where something was cut off."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(f"{text}...", size) > room:
        text = text[:-1]
    return f"{text}..."
