"""The plots of a program: the list of all, the roofline, and the weights of a layer."""

from __future__ import annotations

import numpy as np

from anytpu import units
from anytpu.chip.graph.nodes import Convolution, Network
from anytpu.chip.page import figures
from anytpu.chip.page.diagram import block_diagram
from anytpu.chip.page.figures import cycles_of, dominating
from anytpu.chip.page.record import ChipPage
from anytpu.chip.page.time_plots import memory_map, overview
from anytpu.chip.timing.record import PartTiming, Timing
from anytpu.report.drawing.axes import horizontal, vertical
from anytpu.report.drawing.roofline import Roof, RoofPoint, tick_text
from anytpu.report.drawing.shapes import Drawing, Label, Polyline, Rectangle, Shape, shortened
from anytpu.report.wording import percent, plural

_NAMED = 6
_ROOF_HEIGHT, _ROOF_TOP, _ROOF_BOTTOM = 380.0, 40.0, 330.0
_WIDTH, _HEIGHT = 480.0, 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 20.0, 460.0, 40.0, 184.0
_BIN = 4
"""Number of weight values per bar of a histogram."""


def drawings(page: ChipPage) -> list[Drawing]:
    """Return the plots of a program for which there is data."""
    weighted = layers_with_weights(page.network)
    drawn = (
        block_diagram(page),
        overview(page.timing),
        roofline(page.timing),
        memory_map(page.timing, page.image),
        histogram(weighted[0]) if weighted else None,
    )
    return [drawing for drawing in drawn if drawing is not None]


def roofline(timing: Timing, narrow: bool = False) -> Drawing | None:
    """Return the layers under the roof of the chip, `narrow` for a telephone; None if no layer multiplies.

    Activations never leave the chip, so the limit of a layer is the reuse of its weights. A layer with fewer
    multiply-adds per byte of weights than the ridge (1350) waits for its weights.
    """
    width, left, right, room = (360.0, 52.0, 338.0, 110.0) if narrow else (760.0, 70.0, 732.0, 150.0)
    parts = [part for part in timing.parts if part.macs > 0 and part.weight_bytes > 0 and cycles_of(part) > 0]
    if not parts:
        return None
    design = timing.design
    ridge, peak = design.ridge_macs_per_byte, design.peak_ops_per_s
    text = figures.format_tops(peak)
    title = f"{text}; {design.weight_bytes_per_s / 1e9:g} GB/s"
    roof = Roof(peak, ridge, text, title, 8, 50, left, right, _ROOF_TOP, _ROOF_BOTTOM)
    points = [
        RoofPoint(part.macs / part.weight_bytes, figures.part_ops_per_s(part, design), cycles_of(part),
                  dominating(part).colour, shortened(part.name, room), _roof_title(part, timing))
        for part in sorted(parts, key=cycles_of, reverse=True)
    ]  # fmt: skip
    x, y = roof.scales(points)
    unit = "TOPS (logarithmic)" if narrow else "TOPS (10^12 multiplications and additions a second, logarithmic)"
    shapes = [
        *horizontal(x, _ROOF_BOTTOM, tick_text, "multiply-adds a byte of weights (logarithmic)", _ROOF_TOP),
        *vertical(y, left, lambda rate: f"{rate / 1e12:.4g}", right),
        Label(12, 16, unit, colour="muted"),
        Polyline(((x(ridge), y(peak)), (x(ridge), _ROOF_BOTTOM)), "muted", 1.0, is_dashed=True),
        Label(x(ridge) - 6, _ROOF_BOTTOM - 8, f"ridge: {ridge:,.0f}", "end", "muted"),
        *roof.shapes(points, _NAMED, width),
    ]
    summary = (
        f"{plural(len(points), 'layer')}; {sum(point.intensity < ridge for point in points)} left of the ridge at "
        f"{ridge:,.0f} multiply-adds a byte, where the Weight Memory is the limit."
    )
    heading = "Layers under the roofline of the chip, predicted"
    return Drawing("roofline", heading, summary, width, _ROOF_HEIGHT, tuple(shapes))


def _roof_title(part: PartTiming, timing: Timing) -> str:
    rate = figures.part_ops_per_s(part, timing.design)
    share = cycles_of(part) / timing.cycles if timing.cycles else 0.0
    return (
        f"{part.name}: {part.macs / part.weight_bytes:,.0f} MACs a byte, {figures.format_tops(rate)}, "
        f"{percent(share)} of the cycles, mostly {dominating(part).name}"
    )


def layers_with_weights(network: Network | None) -> list[Convolution]:
    """Return the layers that have weights, the largest first."""
    nodes = [node for node in network.nodes if isinstance(node, Convolution)] if network else []
    return sorted(nodes, key=lambda node: -node.weights.size)


def histogram(node: Convolution) -> Drawing:
    """Return the histogram of a layer's weights, with four values per bar."""
    counts = np.bincount(node.weights.ravel().astype(np.int64) + 128, minlength=256).reshape(-1, _BIN).sum(axis=1)
    most = max(int(counts.max()), 1)
    width = (_RIGHT - _LEFT) / len(counts)
    shapes: list[Shape] = [Polyline(((_LEFT, _BOTTOM), (_RIGHT, _BOTTOM)), "grid")]
    for index, count in enumerate(counts):
        if count:
            low = index * _BIN - 128
            height = max(float(count) / most * (_BOTTOM - _TOP), 0.7)
            said = f"{low} to {low + _BIN - 1}: {int(count):,} weights"
            shapes.append(Rectangle(_LEFT + index * width, _BOTTOM - height, width - 1, height, "c0", title=said))
    for value in (-127, -64, 0, 64, 127):
        at = _LEFT + (value + 128.5) * width / _BIN
        shapes.append(Label(at, _BOTTOM + 18, f"{value}", "middle", "muted", 12.0))
    zero = float((node.weights == 0).mean()) if node.weights.size else 0.0
    said = (
        f"{units.format_count(node.weights.size)} weights, {percent(zero)} of them 0, "
        f"{len(np.unique(node.weights)):,} values in use"
    )
    shapes.append(Label(_LEFT, 16, said, colour="muted", size=12.0))
    title = f"Weights of {node.layer or node.name} as integers"
    return Drawing("weights_histogram", title, f"{said}.", _WIDTH, _HEIGHT, tuple(shapes))
