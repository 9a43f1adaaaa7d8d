"""A plot of horizontal bars, each with its name at the left and its amount at the right."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from anytpu.report.drawing.shapes import Drawing, Label, Rectangle, Shape, shortened, text_width
from anytpu.report.wording import one_line

_WIDTH, _ROW, _TOP = 760.0, 26.0, 10.0
_NAMES, _SOURCES, _BARS, _END = 236.0, 356.0, 366.0, 612.0
_NARROW, _NARROW_ROW = 360.0, 44.0


@dataclasses.dataclass(frozen=True)
class Row:
    """A bar and its texts.

    Attributes:
        name: text at the left.
        source: text between name and bar: the user's source line, or a description.
        share: text at the right of the bar: its share of the whole, or "".
        amount: text at the right edge.
        parts: (length, colour, opacity) of each part of the bar.
        title: tooltip; "": the name and the amount.
    """

    name: str
    source: str
    share: str
    amount: str
    parts: tuple[tuple[float, str, float], ...]
    title: str = ""


def bars(name: str, title: str, rows: Sequence[Row], narrow: bool = False) -> Drawing | None:
    """Return a plot of bars; None if there are no rows.

    Args:
        name: name of the drawing's file.
        title: title of the plot.
        rows: the bars, from top to bottom.
        narrow: use the layout for a telephone, with each bar below its name.
    """
    if not rows:
        return None
    longest = max(sum(length for length, *_ in row.parts) for row in rows) or 1.0
    draw_row, height, width = (_narrow_row, _NARROW_ROW, _NARROW) if narrow else (_row, _ROW, _WIDTH)
    shapes = [shape for index, row in enumerate(rows) for shape in draw_row(row, _TOP + height * index, longest)]
    summary = f"{rows[0].name}: {rows[0].amount}."
    return Drawing(name, title, summary, width, _TOP * 2 + height * len(rows), tuple(shapes))


def _row(row: Row, top: float, longest: float) -> list[Shape]:
    base, has_source = top + _ROW / 2 + 4, bool(row.source)
    room = _NAMES - 12 if has_source else _SOURCES - 20
    shapes: list[Shape] = [Label(12, base, shortened(one_line(row.name), room))]
    if has_source:
        shapes.append(Label(_NAMES + 8, base, shortened(row.source, _SOURCES - _NAMES - 14, 11), "start", "muted", 11))
    boxes = _boxes(row, _BARS, _END, top + 5, longest)
    amounts = [Label(_WIDTH - 84, base, row.share, "end", "muted"), Label(_WIDTH - 12, base, row.amount, "end")]
    return [*shapes, *boxes, *(label for label in amounts if label.text)]


def _narrow_row(row: Row, top: float, longest: float) -> list[Shape]:
    amount = row.amount if not row.share else f"{row.amount}, {row.share}"
    room = _NARROW - 16 - text_width(amount)
    labels = [Label(0, top + 12, shortened(one_line(row.name), room)), Label(_NARROW, top + 12, amount, "end", "muted")]
    return [*labels, *_boxes(row, 0, _NARROW, top + 19, longest)]


def _boxes(row: Row, x: float, end: float, top: float, longest: float) -> list[Shape]:
    boxes: list[Shape] = []
    scale = (end - x) / longest
    for length, colour, opacity in row.parts:
        width = max(length, 0.0) * scale
        boxes.append(Rectangle(x, top, width, _ROW - 10, colour, opacity, row.title or f"{row.name}: {row.amount}"))
        x += width
    return boxes
