"""The roofline plot: operations limited by the matrix units, and operations limited by the memory.

Idea: an operation with many FLOPs per byte can reach the peak rate; one with few is limited by the memory bandwidth.
The distance of a point to the roof is the lost performance.
"""

from __future__ import annotations

from collections.abc import Sequence

from anytpu import units
from anytpu.planning.records import OpTime, Prediction
from anytpu.report.drawing.axes import Scale, horizontal, logarithmic, vertical
from anytpu.report.drawing.frame import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, along, place_labels
from anytpu.report.drawing.shapes import Dot, Drawing, Label, Line, Shape
from anytpu.report.plan import phrases
from anytpu.report.plan.colours import KIND_COLOURS

_MAX_OPS = 40


def roofline(prediction: Prediction) -> Drawing | None:
    """Return the longest operations under the roof of their device; None if the roof or the operations are unknown."""
    ops = [op for op in prediction.time_by_op if op.flops > 0 and op.bytes > 0 and op.time_s > 0][:_MAX_OPS]
    if not ops or not prediction.peak_flops_per_s:
        return None
    peak, bandwidth = prediction.peak_flops_per_s, prediction.target.hbm_bytes_per_s
    ridge = peak / bandwidth
    x = logarithmic([*(op.flops / op.bytes for op in ops), ridge / 4, ridge * 4], LEFT, RIGHT)
    y = logarithmic([*(op.flops / op.time_s for op in ops), peak, peak / 20], BOTTOM, TOP - 10)
    roof = _roof(x, y, peak, bandwidth)
    unseen = _unseen(prediction)
    shapes = [
        *horizontal(x, BOTTOM, _number, "FLOPs for each byte moved", TOP - 10),
        *vertical(y, LEFT, _short_rate, RIGHT),
        Label(12, 14, "FLOP/s", colour="muted"),
        *([Label(RIGHT, 14, unseen, "end", "muted", 11.0)] if unseen else []),
        *roof,
        *_dots(ops, x, y, along(line.points for line in roof if isinstance(line, Line))),
    ]
    summary = (
        f"{phrases.plural(len(ops), 'operation')}; the roof is {units.format_rate(peak, 'FLOP')} and "
        f"{units.format_rate(bandwidth, 'B')}{f'; {unseen}' if unseen else ''}."
    )
    return Drawing("roofline", "Operations under the roofline of a device", summary, WIDTH, HEIGHT, tuple(shapes))


def _unseen(prediction: Prediction) -> str:
    """Return a remark on operations without memory traffic, which have no position under the roof."""
    count = sum(op.flops > 0 and op.bytes == 0 and op.time_s > 0 for op in prediction.time_by_op)
    move = "moves nothing to memory is" if count == 1 else "move nothing to memory are"
    return f"{phrases.plural(count, 'operation')} that {move} not shown" if count else ""


def _roof(x: Scale, y: Scale, peak: float, bandwidth: float) -> list[Shape]:
    ridge, low = peak / bandwidth, max(x.low, y.low / bandwidth)
    points = ((x(low), y(low * bandwidth)), (x(ridge), y(peak)), (x(x.high), y(peak)))
    return [
        Line(points, "ink", 1.5, title=f"{units.format_rate(peak, 'FLOP')}, {units.format_rate(bandwidth, 'B')}"),
        Label(RIGHT, y(peak) - 6, units.format_rate(peak, "FLOP"), "end", "muted"),
    ]


def _dots(ops: Sequence[OpTime], x: Scale, y: Scale, lines: Sequence[tuple[float, float]]) -> list[Shape]:
    """Return a disc for each operation, sized by its time; the longest three are labelled."""
    longest_s = ops[0].time_s
    places = [(x(op.flops / op.bytes), y(op.flops / op.time_s)) for op in ops]
    dots = [_dot(op, *place, longest_s) for op, place in zip(ops, places, strict=True)]
    return [
        *dots,
        *place_labels(
            [(*place, _name(op), "ink") for op, place in zip(ops[:3], places[:3], strict=True)], places, lines=lines
        ),
    ]


def _dot(op: OpTime, x: float, y: float, longest_s: float) -> Dot:
    radius = 3 + 6 * (op.time_s / longest_s) ** 0.5
    return Dot(x, y, radius, KIND_COLOURS[op.kind], opacity=0.7, title=phrases.op_hover(op))


def _name(op: OpTime) -> str:
    name = op.layer or op.name
    return name if len(name) <= 22 else f"{name[:19]}..."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _short_rate(flops_per_s: float) -> str:
    return units.format_rate(flops_per_s, "FLOP").removesuffix("FLOP/s")
