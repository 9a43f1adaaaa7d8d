"""The roofline plot: layers limited by the array, and layers limited by the Weight Memory.

Idea: activations never leave the chip, so the limit of a layer is the reuse of its weights. A layer with fewer
multiply-adds per byte of weights than the ridge (1350) waits for its weights.
"""

from __future__ import annotations

import dataclasses

from anytpu.chip.design import Design
from anytpu.chip.timing.record import PartTiming, Timing
from anytpu.report.chip import figures
from anytpu.report.chip.causes import cycles_of, dominating
from anytpu.report.drawing.axes import Scale, horizontal, logarithmic, vertical
from anytpu.report.drawing.frame import along, place_labels
from anytpu.report.drawing.shapes import Dot, Drawing, Label, Line, Shape, shortened
from anytpu.report.wording import percent, plural

_HEIGHT, _TOP, _BOTTOM = 380.0, 40.0, 330.0
_NAMED, _APART = 6, 16.0


@dataclasses.dataclass(frozen=True)
class _Sheet:
    """Widths and texts of the plot.

    Attributes:
        width: width of the plot, in points.
        left: left edge of the area between the axes, in points.
        right: right edge of that area, in points.
        across: title of the horizontal axis.
        upwards: title of the vertical axis.
        name: maximum width of a layer's name, in points.
    """

    width: float
    left: float
    right: float
    across: str
    upwards: str
    name: float


_WIDE = _Sheet(760.0, 70.0, 732.0, "multiply-adds for each byte of weights read (logarithmic)",
               "TOPS (10^12 multiplications and additions a second, logarithmic)", 150.0)  # fmt: skip
_NARROW = _Sheet(360.0, 52.0, 338.0, "multiply-adds a byte of weights (logarithmic)", "TOPS (logarithmic)", 110.0)


def roofline(timing: Timing, narrow: bool = False) -> Drawing | None:
    """Return the layers under the roof of the chip, `narrow` for a telephone; None if no layer multiplies."""
    sheet = _NARROW if narrow else _WIDE
    parts = [part for part in timing.parts if part.macs > 0 and part.weight_bytes > 0 and cycles_of(part) > 0]
    if not parts:
        return None
    design = timing.design
    rates = [figures.part_ops_per_s(part, design) for part in parts]
    intensities = [part.macs / part.weight_bytes for part in parts]
    ridge, peak = design.ridge_macs_per_byte, design.peak_ops_per_s
    x = logarithmic([*intensities, ridge / 8, ridge * 4], sheet.left, sheet.right)
    y = logarithmic([*rates, peak, peak / 50], _BOTTOM, _TOP)
    roof = _roof(x, y, design, sheet.right)
    shapes = [
        *horizontal(x, _BOTTOM, _number, sheet.across, _TOP),
        *vertical(y, sheet.left, lambda rate: f"{rate / 1e12:.4g}", sheet.right),
        Label(12, 16, sheet.upwards, colour="muted"),
        *roof,
        *_dots(timing, parts, x, y, sheet, along(line.points for line in roof if isinstance(line, Line))),
    ]
    bound = sum(intensity < ridge for intensity in intensities)
    summary = (
        f"{plural(len(parts), 'layer')}; {bound} left of the ridge at {ridge:,.0f} multiply-adds a byte, where the "
        f"Weight Memory is the limit."
    )
    return Drawing(
        "roofline", "Layers under the roofline of the chip, predicted", summary, sheet.width, _HEIGHT, tuple(shapes)
    )


def _roof(x: Scale, y: Scale, design: Design, right: float) -> list[Shape]:
    peak, ridge = design.peak_ops_per_s, design.ridge_macs_per_byte
    slope = peak / ridge
    low = max(x.low, y.low / slope)
    points = ((x(low), y(low * slope)), (x(ridge), y(peak)), (x(x.high), y(peak)))
    return [
        Line(points, "ink", 1.5, title=f"{figures.format_tops(peak)}; {design.weight_bytes_per_s / 1e9:g} GB/s"),
        Line(((x(ridge), y(peak)), (x(ridge), _BOTTOM)), "muted", 1.0, is_dashed=True),
        Label(x(ridge) - 6, _BOTTOM - 8, f"ridge: {ridge:,.0f}", "end", "muted"),
        Label(right, y(peak) - 7, figures.format_tops(peak), "end", "muted"),
    ]


def _dots(
    timing: Timing, parts: list[PartTiming], x: Scale, y: Scale, sheet: _Sheet, lines: list[tuple[float, float]]
) -> list[Shape]:
    """Return a disc per layer, sized by its cycles and coloured by its main cause; the longest are labelled."""
    ordered = sorted(parts, key=cycles_of, reverse=True)
    longest = cycles_of(ordered[0])
    places = [(x(part.macs / part.weight_bytes), y(figures.part_ops_per_s(part, timing.design))) for part in ordered]
    dots = [
        Dot(*position, 3 + 5.5 * (cycles_of(part) / longest) ** 0.5, dominating(part).colour, opacity=0.75,
            title=_hover(part, timing))
        for part, position in zip(ordered, places, strict=True)
    ]  # fmt: skip
    named: list[tuple[float, float, str, str]] = []
    for part, (at, height) in zip(ordered, places, strict=True):
        # Layers of the same shape have the same position: one label is enough.
        if len(named) < _NAMED and all(abs(at - x) + abs(height - y) > _APART for x, y, *_ in named):
            named.append((at, height, shortened(part.name, sheet.name), "ink"))
    return [*dots, *place_labels(named, places, lines=lines, bounds=(sheet.left, sheet.width))]


def _hover(part: PartTiming, timing: Timing) -> str:
    rate = figures.part_ops_per_s(part, timing.design)
    share = cycles_of(part) / timing.cycles if timing.cycles else 0.0
    return (
        f"{part.name}: {part.macs / part.weight_bytes:,.0f} MACs a byte, {figures.format_tops(rate)}, "
        f"{percent(share)} of the cycles, mostly {dominating(part).name}"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
