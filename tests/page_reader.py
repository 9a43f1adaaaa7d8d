"""Pages and drawings as their readers read them: elements, text, what is closed wrongly, where a shape ends."""

from __future__ import annotations

import html.parser

from PIL import ImageFont

from anytpu.report.drawing.shapes import Dot, Label, Polyline, Rectangle

VOID = {"meta"}


class Reader(html.parser.HTMLParser):
    """Reads a page as a browser does; keeps its elements, its text and where an element is closed wrongly."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.faults: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open += [] if tag in VOID else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.text += data

    def attributes(self, *names: str) -> list[str]:
        return [values[name] or "" for _, values in self.elements for name in names if name in values]


def ends(shape: Rectangle | Polyline | Dot | Label) -> list[tuple[float, float]]:
    if isinstance(shape, Rectangle):
        return [(shape.x, shape.y), (shape.x + shape.width, shape.y + shape.height)]
    if isinstance(shape, Polyline):
        return list(shape.points)
    if isinstance(shape, Dot):
        return [(shape.x - shape.radius, shape.y - shape.radius), (shape.x + shape.radius, shape.y + shape.radius)]
    try:
        font = ImageFont.truetype("DejaVuSans.ttf", 100)
    except OSError:
        return [(shape.x, shape.y)]
    width = font.getlength(shape.text) * shape.size / 100
    left = shape.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor] * width
    return [(left, shape.y), (left + width, shape.y)]
