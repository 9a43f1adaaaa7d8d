"""The roofline plot: the rates of operations or layers, below the limits of the multipliers and of the memory.

Idea: work with many operations per byte can reach the peak rate; work with few is limited by the memory bandwidth. The
distance of a point to the roof is the lost performance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from anytpu.report.drawing.axes import BOTTOM, LEFT, RIGHT, TOP, Scale, along, logarithmic, place_labels
from anytpu.report.drawing.shapes import Dot, Label, Polyline, Shape

_APART = 16.0
"""Distance of two labelled points, at least, in points."""


@dataclasses.dataclass(frozen=True)
class RoofPoint:
    """Work under a roof.

    Attributes:
        intensity: operations per byte.
        rate: operations per second.
        duration: its time, in any unit; a longer one has a larger disc.
        colour: colour of its disc.
        name: its label.
        title: its tooltip.
    """

    intensity: float
    rate: float
    duration: float
    colour: str
    name: str
    title: str


@dataclasses.dataclass(frozen=True)
class Roof:
    """The limits of a device, and the area between the axes.

    Attributes:
        peak: maximum rate, in operations per second.
        ridge: operations per byte from which the peak can be reached.
        text: the peak rate as text.
        title: tooltip of the roof.
        intensity_span: ratio of the ridge to the smallest intensity shown.
        rate_span: ratio of the peak to the smallest rate shown.
        left, right, top, bottom: edges of the area, in points.
    """

    peak: float
    ridge: float
    text: str
    title: str
    intensity_span: float
    rate_span: float
    left: float = LEFT
    right: float = RIGHT
    top: float = TOP - 10
    bottom: float = BOTTOM

    def scales(self, points: Sequence[RoofPoint]) -> tuple[Scale, Scale]:
        """Return the scales of the intensity and of the rate."""
        intensities = [*(point.intensity for point in points), self.ridge / self.intensity_span, self.ridge * 4]
        rates = [*(point.rate for point in points), self.peak, self.peak / self.rate_span]
        return logarithmic(intensities, self.left, self.right), logarithmic(rates, self.bottom, self.top)

    def shapes(self, points: Sequence[RoofPoint], most_named: int, end: float = RIGHT + 8) -> list[Shape]:
        """Return the roof, and a disc for each point below it; the longest points are labelled.

        Args:
            points: the points, the longest first.
            most_named: maximum number of labels.
            end: largest right edge of a label.
        """
        x, y = self.scales(points)
        slope = self.peak / self.ridge
        low = max(x.low, y.low / slope)
        corners = ((low, low * slope), (self.ridge, self.peak), (x.high, self.peak))
        line = tuple((x(intensity), y(rate)) for intensity, rate in corners)
        roof = Polyline(line, "ink", 1.5, title=self.title)
        places = [(x(point.intensity), y(point.rate)) for point in points]
        named: list[tuple[float, float, str, str]] = []
        for point, (at, height) in zip(points, places, strict=True):
            # Similar work has the same position: one label is enough.
            if len(named) < most_named and all(abs(at - x) + abs(height - y) > _APART for x, y, *_ in named):
                named.append((at, height, point.name, "ink"))
        dots = [
            Dot(*place, 3 + 6 * (point.duration / points[0].duration) ** 0.5, point.colour, False, 0.75, point.title)
            for point, place in zip(points, places, strict=True)
        ]
        peak = Label(self.right, y(self.peak) - 6, self.text, "end", "muted")
        labels = place_labels(named, places, lines=along([roof.points]), bounds=(self.left, end))
        return [roof, peak, *dots, *labels]


def tick_text(value: float) -> str:
    """Format a tick of an intensity."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
