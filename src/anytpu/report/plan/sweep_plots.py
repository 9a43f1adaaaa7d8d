"""The curves of a sweep: speed and memory over the batch, step time and efficiency over the devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anytpu.planning.records import Plan, Prediction
from anytpu.report.drawing.axes import Scale, doubling, duration, fitting, horizontal, linear, logarithmic, vertical
from anytpu.report.drawing.frame import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, legend, series_colour
from anytpu.report.drawing.shapes import Dot, Drawing, Label, Line, Shape
from anytpu.report.plan import phrases
from anytpu.report.plan.sweeps import Curve, batch_curves, efficiency, ideal_step_s, scaling_curves

Value = Callable[[Prediction], float | None]


def batch_speed(plan: Plan) -> Drawing | None:
    """Return examples a second over the batch, a line for each system; a ring marks a batch that does not fit."""
    curves = batch_curves(plan)
    speeds = [one.examples_per_s for curve in curves for one in curve.points if one.examples_per_s]
    if not speeds:
        return None
    x, y = _batches(curves), logarithmic(speeds, BOTTOM, TOP)
    shapes = [
        *_axes(x, y, "examples of a step", phrases.count, phrases.count),
        *_lines(curves, x, y, _batch, lambda one: one.examples_per_s, _speed_said),
    ]
    return _drawing("batch_speed", "Examples a second over the batch", shapes, curves)


def batch_memory(plan: Plan) -> Drawing | None:
    """Return how full the memory is over the batch, a line for each system, and where it is full."""
    curves = batch_curves(plan)
    shares = [share for curve in curves for one in curve.points if (share := phrases.memory_share(one.memory))]
    if not shares:
        return None
    x, y = _batches(curves), linear([min(max(shares), 1.5), 1.05], BOTTOM, TOP)
    full = y(1.0)
    shapes = [
        *_axes(x, y, "examples of a step", phrases.count, phrases.percent),
        Line(((LEFT, full), (RIGHT, full)), "c3", 1.5, True, "the memory that a program may use"),
        Label(LEFT + 6, full - 6, "does not fit", "start", "c3"),
        *_lines(_until_full(curves), x, y, _batch, lambda one: phrases.memory_share(one.memory), _memory_said),
    ]
    return _drawing("batch_memory", "Memory of a device over the batch", shapes, curves)


def scaling_time(plan: Plan) -> Drawing | None:
    """Return the step time over the devices, with its interval, beside what it ideally would be."""
    curves = _timed(scaling_curves(plan))
    if not curves:
        return None
    ends = [end_s for curve in curves for _, between in _intervals(curve) for end_s in between]
    ideals = [ideal for curve in curves for one in curve.points if (ideal := ideal_step_s(curve, one))]
    x, y = _devices(curves), fitting([*ends, *ideals], BOTTOM, TOP)
    shapes = [
        *_axes(x, y, "devices; an upright line spans what a step is expected between", phrases.count, duration),
        *_ideal(curves, x, y, ideal_step_s),
        *_whiskers(curves, x, y),
        *_lines(curves, x, y, _device, lambda one: one.step_s, _step_said),
    ]
    return _drawing("scaling_step_time", "Step time over the devices", shapes, curves, dashed="as fast as the smallest")


def scaling_efficiency(plan: Plan) -> Drawing | None:
    """Return how fast a device is over how many there are, against a device of the smallest slice."""
    curves = _timed(scaling_curves(plan))
    if not curves:
        return None
    values = [value for curve in curves for one in curve.points if (value := efficiency(curve, one))]
    x, y = _devices(curves), linear([*values, 1.0], BOTTOM, TOP)
    shapes: list[Shape] = [*_axes(x, y, "devices", phrases.count, phrases.percent)]
    shapes.append(Line(((LEFT, y(1.0)), (RIGHT, y(1.0))), "muted", 1.5, True, "ideal"))
    for number, curve in enumerate(curves):
        shapes += _line(curve.points, number, x, y, _device, _efficiency_in(curve), _step_said)
    return _drawing("scaling_efficiency", "Efficiency over the devices", shapes, curves, dashed="ideal")


def _efficiency_in(curve: Curve) -> Value:
    return lambda one: efficiency(curve, one)


def _until_full(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves up to the first point over the upper edge of the plot, at which it is drawn."""
    return [
        Curve(curve.name, curve.points[: next((n for n, one in enumerate(curve.points, 1) if not one.fits), None)])
        for curve in curves
    ]


def _timed(curves: Sequence[Curve]) -> list[Curve]:
    return [curve for curve in curves if sum(one.step_s is not None for one in curve.points) > 1]


def _batch(one: Prediction) -> float:
    return float(one.batch_size or 0)


def _device(one: Prediction) -> float:
    return float(one.target.devices)


def _batches(curves: Sequence[Curve]) -> Scale:
    return doubling([_batch(one) for curve in curves for one in curve.points], LEFT, RIGHT)


def _devices(curves: Sequence[Curve]) -> Scale:
    return doubling([_device(one) for curve in curves for one in curve.points], LEFT, RIGHT)


def _axes(
    x: Scale, y: Scale, title: str, write_x: Callable[[float], str], write_y: Callable[[float], str]
) -> list[Shape]:
    return [*vertical(y, LEFT, write_y, RIGHT), *horizontal(x, BOTTOM, write_x, title, TOP)]


def _lines(
    curves: Sequence[Curve], x: Scale, y: Scale, at: Callable[[Prediction], float], value: Value, said: Callable
) -> list[Shape]:
    return [
        shape for number, curve in enumerate(curves) for shape in _line(curve.points, number, x, y, at, value, said)
    ]


def _line(
    points: Sequence[Prediction],
    number: int,
    x: Scale,
    y: Scale,
    at: Callable[[Prediction], float],
    value: Value,
    said: Callable[[Prediction], str],
) -> list[Shape]:
    colour = series_colour(number)
    places = [(one, x(at(one)), y(height)) for one in points if (height := value(one)) is not None]
    line = Line(tuple((across, up) for _, across, up in places), colour, 2.0)
    dots = [Dot(across, up, 4.0, colour, not one.fits, title=said(one)) for one, across, up in places]
    return [line, *dots]


def _ideal(curves: Sequence[Curve], x: Scale, y: Scale, ideal: Callable) -> list[Shape]:
    lines: list[Shape] = []
    for curve in curves:
        points = [(x(_device(one)), y(value)) for one in curve.points if (value := ideal(curve, one)) is not None]
        if len(points) > 1:
            lines.append(Line(tuple(points), "muted", 1.5, True, f"{curve.name}: as fast as the smallest slice"))
    return lines


def _whiskers(curves: Sequence[Curve], x: Scale, y: Scale) -> list[Shape]:
    lines: list[Shape] = []
    for number, curve in enumerate(curves):
        timed = [(x(_device(one)), between) for one, between in _intervals(curve)]
        lines += [Line(((at, y(low)), (at, y(high))), series_colour(number), 1.5) for at, (low, high) in timed]
    return lines


def _intervals(curve: Curve) -> list[tuple[Prediction, tuple[float, float]]]:
    return [(one, phrases.drawn(one.interval_s, one.step_s)) for one in curve.points if one.interval_s is not None]


def _drawing(name: str, title: str, shapes: list[Shape], curves: Sequence[Curve], dashed: str = "") -> Drawing:
    key = legend([(curve.name, series_colour(number)) for number, curve in enumerate(curves)])
    if dashed:
        key += [Line(((RIGHT - 176, 10), (RIGHT - 154, 10)), "muted", 1.5, True), Label(RIGHT - 148, 14, dashed)]
    summary = f"{', '.join(curve.name for curve in curves)}; each point says its numbers when it is pointed at."
    return Drawing(name, title, summary, WIDTH, HEIGHT, (*shapes, *key))


def _speed_said(one: Prediction) -> str:
    return f"{one.target.name}, {phrases.count(one.batch_size)} a step: {phrases.rate(one.examples_per_s)} examples/s"


def _memory_said(one: Prediction) -> str:
    share = phrases.percent(phrases.memory_share(one.memory))
    return f"{one.target.name}, {phrases.count(one.batch_size)} a step: {share}, {phrases.verdict(one)}"


def _step_said(one: Prediction) -> str:
    return (
        f"{one.target.name}, {phrases.count(one.batch_size)} a step: {phrases.seconds(one.step_s)}, "
        f"{phrases.interval(one.interval_s)}"
    )
