"""Layout of a plot of points and lines: size, margins, legend, placement of labels."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from anytpu.report.drawing.shapes import SERIES, Box, Label, Shape, text_width

WIDTH, HEIGHT = 480.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 452.0, 36.0, 242.0
"""Edges of the area between the axes, in points."""


def series_colour(index: int) -> str:
    """Return the colour of the series at an index; colours repeat."""
    return SERIES[index % len(SERIES)]


def legend(
    entries: Sequence[tuple[str, str]], left: float = LEFT, right: float = RIGHT, y: float = 14.0
) -> list[Shape]:
    """Return a coloured square and a name per entry (name, colour) in a row; "+ n" counts entries that do not fit."""
    shapes: list[Shape] = []
    x, y = left, 14.0
    for index, (name, colour) in enumerate(entries):
        width = 14 + text_width(name) + 14
        rest = len(entries) - index
        if x + width > right - (40 if rest > 1 else 0) and index:
            return [*shapes, Label(x, y, f"+ {rest}", colour="muted")]
        shapes += [Box(x, y - 9, 10, 10, colour), Label(x + 14, y, name)]
        x += width
    return shapes


def place_labels(
    points: Sequence[tuple[float, float, str, str]],
    others: Sequence[tuple[float, float]] = (),
    size: float = 13.0,
    lines: Sequence[tuple[float, float]] = (),
    bounds: tuple[float, float] = (LEFT, RIGHT + 8),
) -> list[Label]:
    """Return a label beside each point (x, y, text, colour) that covers neither another label nor a point.

    Args:
        points: the points to label.
        others: further points (x, y) that must remain visible.
        size: font size.
        lines: points along lines, which a label crosses only if no other position is free.
        bounds: smallest left edge and largest right edge of a label.

    A label without a free position is left out; the plot's tooltips still name the point.
    """
    occupied = [(x - 6, y - 6, x + 6, y + 6) for x, y in (*((x, y) for x, y, _, _ in points), *others)]
    avoided = [(x - 1, y - 1, x + 1, y + 1) for x, y in lines]
    labels = []
    for x, y, text, colour in points:
        width = text_width(text, size)
        candidates = [(left, base, (left, base - size, left + width, base + 3)) for left, base in _around(x, y, width)]
        free = [
            (left, base, box)
            for left, base, box in candidates
            if left >= bounds[0] and box[2] <= bounds[1] and not any(_overlap(box, other) for other in occupied)
        ]
        clear = [candidate for candidate in free if not any(_overlap(candidate[2], box) for box in avoided)]
        for left, base, box in (clear or free)[:1]:
            occupied.append(box)
            labels.append(Label(left, base, text, "start", colour, size))
    return labels


def _around(x: float, y: float, width: float) -> list[tuple[float, float]]:
    """Return candidate positions of a point's label, the best first."""
    above, below = y - 11, y + 20
    sides = [(x + 9, y + 4), (x - 9 - width, y + 4), (x - width / 2, above), (x - width / 2, below)]
    return [*sides, (x - width, above), (x, below), (x, above), (x - width, below), (x - width / 2, y + 36)]


def along(lines: Iterable[Sequence[tuple[float, float]]], every: float = 3.0) -> list[tuple[float, float]]:
    """Return points along polylines, so dense that no letter fits between two of them."""
    dense: list[tuple[float, float]] = []
    for points in lines:
        for (x, y), (end_x, end_y) in itertools.pairwise(points):
            steps = max(round(max(abs(end_x - x), abs(end_y - y)) / every), 1)
            dense += [(x + (end_x - x) * n / steps, y + (end_y - y) * n / steps) for n in range(steps + 1)]
    return dense


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
