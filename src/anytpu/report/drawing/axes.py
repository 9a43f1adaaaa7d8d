"""The frame of a plot of points and lines: margins, scales with round ticks, axes, legend, labels of points."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from anytpu import units
from anytpu.report.drawing.shapes import SERIES, Label, Polyline, Rectangle, Shape, text_width

WIDTH, HEIGHT = 480.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 452.0, 36.0, 242.0
"""Edges of the area between the axes, in points."""

TEXT_SIZE = 13.0
_MAX_TICKS = 6
"""Ticks of a logarithmic axis that fit beside each other; the two that enclose the values come on top."""

_DENSE = 3.0
"""Distance of the points of `along`: less than the width of a letter, in points."""

_WIDE = 8.0
# Round durations, from a tenth of a microsecond to three years.
_ROUND_S = (
    *(digit * 10.0**decade for decade in range(-7, 1) for digit in (1, 2, 5)),
    *(10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
    *(3600.0 * hours for hours in (1, 2, 5, 12, 24, 48, 120, 240, 720, 2400, 7200, 24000)),
)


@dataclasses.dataclass(frozen=True)
class Scale:
    """A map from a range of values to a range of positions.

    Attributes:
        low: value at `start`.
        high: value at `end`.
        start: first position, in points.
        end: last position, in points.
        ticks: values with a label.
        is_logarithmic: whether equal distances are equal ratios.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    is_logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value, in points; values outside the range are clipped to its ends."""
        inside = min(max(value, self.low), self.high)
        if self.is_logarithmic:
            part = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            part = (inside - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)


def linear(values: Sequence[float], start: float, end: float, max_ticks: int = 5) -> Scale:
    """Return a linear scale from 0 to the first tick at or above the largest value.

    Example:
        >>> linear([7.0, 43.0], 0, 100).ticks
        (0.0, 10.0, 20.0, 30.0, 40.0, 50.0)
    """
    highest = max([*values, 0.0]) or 1.0
    step = _round_step(highest / max_ticks)
    ticks = tuple(index * step for index in range(math.ceil(highest / step - 1e-9) + 1))
    return Scale(0.0, ticks[-1], start, end, ticks)


def logarithmic(values: Sequence[float], start: float, end: float) -> Scale:
    """Return a logarithmic scale around positive values, with ticks at 1, 2 and 5 of each decade, or only at 1.

    Example:
        >>> logarithmic([3.0, 150.0], 0, 100).ticks
        (2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
    """
    lowest, highest = min(values) / 1.08, max(values) * 1.08
    decades = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    fine = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    if len(_covering(fine, lowest, highest)) > _MAX_TICKS + 2:
        fine = [10.0**decade for decade in (*decades, decades.stop)]
    return _around(fine, values, start, end)


def fitting(values: Sequence[float], start: float, end: float) -> Scale:
    """Return a linear scale from 0, or a logarithmic one if the largest positive value is over 8 times the smallest."""
    is_wide = max(values) > _WIDE * min(values) > 0
    return logarithmic(values, start, end) if is_wide else linear(values, start, end)


def spanning(values: Sequence[float], start: float, end: float, max_ticks: int = 5) -> Scale:
    """Return a linear scale from the tick at or below the smallest value to the one at or above the largest.

    Example:
        >>> spanning([-3.0, 12.0], 0, 100).ticks
        (-5.0, 0.0, 5.0, 10.0, 15.0)
    """
    lowest, highest = min(values), max(values)
    step = _round_step((highest - lowest) / max_ticks or abs(highest) or 1.0)
    first, last = math.floor(lowest / step), math.ceil(highest / step)
    ticks = tuple(n * step for n in range(first, max(last, first + 1) + 1))
    return Scale(ticks[0], ticks[-1], start, end, ticks)


def durations(values_s: Sequence[float], start: float, end: float) -> Scale:
    """Return a scale for seconds like `fitting`, with ticks that are round in their displayed unit.

    Example:
        >>> [tick / 3600 for tick in durations([3600.0, 3.9 * 3600], 0, 100).ticks]
        [0.0, 1.0, 2.0, 3.0, 4.0]
        >>> durations([40.0, 6000.0], 0, 100).ticks
        (30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)
    """
    longest_s = max(values_s)
    if longest_s > _WIDE * min(values_s) > 0:
        return _around(_ROUND_S, values_s, start, end)
    unit_s = next((size_s for size_s in (86400.0, 3600.0, 60.0) if longest_s >= 2 * size_s), 1.0)
    scale = linear([value_s / unit_s for value_s in values_s], start, end)
    return Scale(0.0, scale.high * unit_s, start, end, tuple(tick * unit_s for tick in scale.ticks))


def duration(tick_s: float) -> str:
    """Format a tick of `durations`.

    Example:
        >>> duration(7200.0), duration(90.0), duration(0.0), duration(0.02)
        ('2 h', '1.5 min', '0', '20 ms')
    """
    if tick_s == 0:
        return "0"
    for size_s, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if tick_s >= size_s and math.isclose(tick_s / size_s, round(tick_s / size_s, 1)):
            return f"{tick_s / size_s:,.12g} {name}"
    return f"{tick_s:,.0f} s" if tick_s >= 60 else units.format_seconds(tick_s)


def doubling(values: Sequence[float], start: float, end: float) -> Scale:
    """Return a logarithmic scale whose ticks are the values themselves, such as batch sizes or device counts."""
    ticks = sorted(set(values))
    while len(ticks) > _MAX_TICKS + 1:
        ticks = ticks[::2] if ticks[-1] in ticks[::2] else ticks[1::2]
    spread = (max(values) / min(values)) ** 0.06 if max(values) > min(values) else 2.0
    return Scale(min(values) / spread, max(values) * spread, start, end, tuple(ticks), True)


def horizontal(scale: Scale, y: float, write: Callable[[float], str], title: str, lines_to: float) -> list[Shape]:
    """Return the axis below a plot: grid lines up to `lines_to`, labels that do not overlap, a title."""
    shapes: list[Shape] = []
    label_end = -math.inf
    for tick in scale.ticks:
        x, text = scale(tick), write(tick)
        shapes.append(Polyline(((x, y), (x, lines_to)), "grid"))
        half = text_width(text) / 2
        if x - half > label_end:
            shapes.append(Label(x, y + 17, text, "middle", "muted", TEXT_SIZE))
            label_end = x + half + 6
    return [*shapes, Label((scale.start + scale.end) / 2, y + 36, title, "middle", "muted", TEXT_SIZE)]


def vertical(scale: Scale, x: float, write: Callable[[float], str], lines_to: float) -> list[Shape]:
    """Return the axis at the left of a plot: grid lines up to `lines_to` and a label for each tick."""
    shapes: list[Shape] = []
    for tick in scale.ticks:
        y = scale(tick)
        shapes.append(Polyline(((x, y), (lines_to, y)), "grid"))
        shapes.append(Label(x - 8, y + 4, write(tick), "end", "muted", TEXT_SIZE))
    return shapes


def series_colour(index: int) -> str:
    """Return the colour of the series at an index; colours repeat."""
    return SERIES[index % len(SERIES)]


def legend(entries: Sequence[tuple[str, str]]) -> list[Shape]:
    """Return a coloured square and a name per entry (name, colour) in a row; "+ n" counts entries that do not fit."""
    shapes: list[Shape] = []
    x, y = LEFT, 14.0
    for index, (name, colour) in enumerate(entries):
        width = 14 + text_width(name) + 14
        rest = len(entries) - index
        if x + width > RIGHT - (40 if rest > 1 else 0) and index:
            return [*shapes, Label(x, y, f"+ {rest}", colour="muted")]
        shapes += [Rectangle(x, y - 9, 10, 10, colour), Label(x + 14, y, name)]
        x += width
    return shapes


def place_labels(
    points: Sequence[tuple[float, float, str, str]],
    others: Sequence[tuple[float, float]] = (),
    lines: Sequence[tuple[float, float]] = (),
    bounds: tuple[float, float] = (LEFT, RIGHT + 8),
) -> list[Label]:
    """Return a label beside each point (x, y, text, colour) that covers neither another label nor a point.

    Args:
        points: the points to label.
        others: further points (x, y) that must remain visible.
        lines: points along lines; a label covers as few of them as possible.
        bounds: smallest left edge and largest right edge of a label.

    A label without a free position is left out; the plot's tooltips still name the point.
    """
    # Invariant: `occupied` has the boxes of all points and of the labels so far, and no label overlaps one of them.
    occupied = [(x - 6, y - 6, x + 6, y + 6) for x, y in (*((x, y) for x, y, _, _ in points), *others)]
    avoided = [(x - 1, y - 1, x + 1, y + 1) for x, y in lines]
    labels = []
    for x, y, text, colour in points:
        width = text_width(text)
        # 1. The positions inside the plot that cover nothing.
        candidates = [
            (left, base, (left, base - TEXT_SIZE, left + width, base + 3)) for left, base in _beside(x, y, width)
        ]
        free = [
            (left, base, box)
            for left, base, box in candidates
            if left >= bounds[0] and box[2] <= bounds[1] and not any(_overlap(box, other) for other in occupied)
        ]
        # 2. Of these the one that covers the least of the lines; the first such position of `_beside`.
        crossed = [sum(_overlap(box, other) for other in avoided) for _, _, box in free]
        for left, base, box in [free[crossed.index(min(crossed))]] if free else []:
            occupied.append(box)
            labels.append(Label(left, base, text, "start", colour))
    return labels


def _beside(x: float, y: float, width: float) -> list[tuple[float, float]]:
    """Return candidate positions of a point's label, the best first."""
    above, below = y - 11, y + 20
    sides = [(x + 9, y + 4), (x - 9 - width, y + 4), (x - width / 2, above), (x - width / 2, below)]
    return [*sides, (x - width, above), (x, below), (x, above), (x - width, below), (x - width / 2, y + 36)]


def along(lines: Iterable[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return points along polylines, so dense that no letter fits between two of them."""
    dense: list[tuple[float, float]] = []
    for points in lines:
        for (x, y), (end_x, end_y) in itertools.pairwise(points):
            steps = max(round(max(abs(end_x - x), abs(end_y - y)) / _DENSE), 1)
            dense += [(x + (end_x - x) * n / steps, y + (end_y - y) * n / steps) for n in range(steps + 1)]
    return dense


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _around(candidates: Sequence[float], values: Sequence[float], start: float, end: float) -> Scale:
    """Return a logarithmic scale around values, with ticks chosen from candidates."""
    lowest, highest = min(values) / 1.08, max(values) * 1.08
    ticks = _covering(candidates, lowest, highest)
    ticks = ticks[:: math.ceil(len(ticks) / (_MAX_TICKS + 2))]
    return Scale(min(ticks[0], lowest), max(ticks[-1], highest), start, end, tuple(ticks), True)


def _covering(ticks: Sequence[float], lowest: float, highest: float) -> list[float]:
    below = [tick for tick in ticks if tick <= lowest][-1:]
    above = [tick for tick in ticks if tick >= highest][:1]
    return [*below, *(tick for tick in ticks if lowest < tick < highest), *above]


def _round_step(minimum: float) -> float:
    decade = 10.0 ** math.floor(math.log10(minimum))
    return next(digit * decade for digit in (1, 2, 2.5, 5, 10) if digit * decade >= minimum * (1 - 1e-9))
