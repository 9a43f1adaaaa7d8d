"""The sheet that a plot of points and lines is drawn on: its size, its margins, its legend."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from anytpu.report.drawing.shapes import SERIES, Box, Label, Shape, text_width

WIDTH, HEIGHT = 480.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 452.0, 36.0, 242.0
"""Edges of what lies between the axes."""


def series_colour(number: int) -> str:
    """Return the colour of a series by its number."""
    return SERIES[number % len(SERIES)]


def legend(
    entries: Sequence[tuple[str, str]], left: float = LEFT, right: float = RIGHT, y: float = 14.0
) -> list[Shape]:
    """Return a coloured square and a name for each entry (name, colour), in a line; what has no room is counted."""
    shapes: list[Shape] = []
    x, y = left, 14.0
    for number, (name, colour) in enumerate(entries):
        width = 14 + text_width(name) + 14
        rest = len(entries) - number
        if x + width > right - (40 if rest > 1 else 0) and number:
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
    """Return a label beside each point (x, y, text, colour), where it covers no other label and none of the points.

    Args:
        points: what is named.
        others: further points (x, y) that stay visible.
        size: of the letters.
        lines: points along lines, which a label crosses only where there is no other place for it.
        bounds: where a label may start and end, from left to right.

    A label that has no such place is left out; the plot's tooltips still name the point.
    """
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in (*((x, y) for x, y, _, _ in points), *others)]
    drawn = [(x - 1, y - 1, x + 1, y + 1) for x, y in lines]
    labels = []
    for x, y, text, colour in points:
        width = text_width(text, size)
        places = [(at, base, (at, base - size, at + width, base + 3)) for at, base in _around(x, y, width)]
        free = [
            place
            for place in places
            if place[0] >= bounds[0] and place[2][2] <= bounds[1] and not any(_overlap(place[2], box) for box in taken)
        ]
        clear = [place for place in free if not any(_overlap(place[2], box) for box in drawn)]
        for at, base, box in (clear or free)[:1]:
            taken.append(box)
            labels.append(Label(at, base, text, "start", colour, size))
    return labels


def _around(x: float, y: float, width: float) -> list[tuple[float, float]]:
    """Return where the label of a point may start, the best place first."""
    above, below = y - 11, y + 20
    sides = [(x + 9, y + 4), (x - 9 - width, y + 4), (x - width / 2, above), (x - width / 2, below)]
    return [*sides, (x - width, above), (x, below), (x, above), (x - width, below), (x - width / 2, y + 36)]


def along(lines: Iterable[Sequence[tuple[float, float]]], every: float = 3.0) -> list[tuple[float, float]]:
    """Return points along lines through points, close enough together that no letter fits between them."""
    found: list[tuple[float, float]] = []
    for points in lines:
        for (x, y), (end_x, end_y) in itertools.pairwise(points):
            steps = max(round(max(abs(end_x - x), abs(end_y - y)) / every), 1)
            found += [(x + (end_x - x) * n / steps, y + (end_y - y) * n / steps) for n in range(steps + 1)]
    return found


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
