"""Plots of a sweep: speed and memory over the batch size, step time and efficiency over the number of devices."""

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
    """Return examples per second over the batch size, a line per system; a ring marks a batch that does not fit."""
    curves = batch_curves(plan)
    speeds = [prediction.examples_per_s for curve in curves for prediction in curve.points if prediction.examples_per_s]
    if not speeds:
        return None
    x, y = _batches(curves), logarithmic(speeds, BOTTOM, TOP)
    shapes = [
        *_axes(x, y, "examples of a step", phrases.count, phrases.count),
        *_lines(curves, x, y, _batch, lambda prediction: prediction.examples_per_s, _speed_text),
    ]
    return _drawing("batch_speed", "Examples a second over the batch", shapes, curves)


def batch_memory(plan: Plan) -> Drawing | None:
    """Return the used share of the memory over the batch size, a line per system, with the limit."""
    curves = batch_curves(plan)
    shares = [
        share for curve in curves for prediction in curve.points if (share := phrases.memory_share(prediction.memory))
    ]
    if not shares:
        return None
    x, y = _batches(curves), linear([min(max(shares), 1.5), 1.05], BOTTOM, TOP)
    full = y(1.0)
    shapes = [
        *_axes(x, y, "examples of a step", phrases.count, phrases.percent),
        Line(((LEFT, full), (RIGHT, full)), "c3", 1.5, True, "the memory that a program may use"),
        Label(LEFT + 6, full - 6, "does not fit", "start", "c3"),
        *_lines(
            _until_full(curves), x, y, _batch, lambda prediction: phrases.memory_share(prediction.memory), _memory_text
        ),
    ]
    return _drawing("batch_memory", "Memory of a device over the batch", shapes, curves)


def scaling_time(plan: Plan) -> Drawing | None:
    """Return the step time over the number of devices, with its interval and the ideal step time."""
    curves = _timed(scaling_curves(plan))
    if not curves:
        return None
    ends = [end_s for curve in curves for _, between in _intervals(curve) for end_s in between]
    ideals = [ideal for curve in curves for prediction in curve.points if (ideal := ideal_step_s(curve, prediction))]
    x, y = _devices(curves), fitting([*ends, *ideals], BOTTOM, TOP)
    shapes = [
        *_axes(x, y, "devices; a vertical line is the expected interval of a step", phrases.count, duration),
        *_ideal(curves, x, y, ideal_step_s),
        *_whiskers(curves, x, y),
        *_lines(curves, x, y, _device, lambda prediction: prediction.step_s, _step_text),
    ]
    return _drawing("scaling_step_time", "Step time over the devices", shapes, curves, dashed="as fast as the smallest")


def scaling_efficiency(plan: Plan) -> Drawing | None:
    """Return the speed per device over the number of devices, relative to the smallest slice."""
    curves = _timed(scaling_curves(plan))
    if not curves:
        return None
    values = [value for curve in curves for prediction in curve.points if (value := efficiency(curve, prediction))]
    x, y = _devices(curves), linear([*values, 1.0], BOTTOM, TOP)
    shapes: list[Shape] = [*_axes(x, y, "devices", phrases.count, phrases.percent)]
    shapes.append(Line(((LEFT, y(1.0)), (RIGHT, y(1.0))), "muted", 1.5, True, "ideal"))
    for index, curve in enumerate(curves):
        shapes += _line(curve.points, index, x, y, _device, _efficiency_in(curve), _step_text)
    return _drawing("scaling_efficiency", "Efficiency over the devices", shapes, curves, dashed="ideal")


def _efficiency_in(curve: Curve) -> Value:
    return lambda prediction: efficiency(curve, prediction)


def _until_full(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves up to the first point that does not fit, which is drawn at the upper edge of the plot."""
    return [
        Curve(
            curve.name,
            curve.points[: next((n for n, prediction in enumerate(curve.points, 1) if not prediction.fits), None)],
        )
        for curve in curves
    ]


def _timed(curves: Sequence[Curve]) -> list[Curve]:
    return [curve for curve in curves if sum(prediction.step_s is not None for prediction in curve.points) > 1]


def _batch(prediction: Prediction) -> float:
    return float(prediction.batch_size or 0)


def _device(prediction: Prediction) -> float:
    return float(prediction.target.devices)


def _batches(curves: Sequence[Curve]) -> Scale:
    return doubling([_batch(prediction) for curve in curves for prediction in curve.points], LEFT, RIGHT)


def _devices(curves: Sequence[Curve]) -> Scale:
    return doubling([_device(prediction) for curve in curves for prediction in curve.points], LEFT, RIGHT)


def _axes(
    x: Scale, y: Scale, title: str, write_x: Callable[[float], str], write_y: Callable[[float], str]
) -> list[Shape]:
    return [*vertical(y, LEFT, write_y, RIGHT), *horizontal(x, BOTTOM, write_x, title, TOP)]


def _lines(
    curves: Sequence[Curve], x: Scale, y: Scale, at: Callable[[Prediction], float], value: Value, said: Callable
) -> list[Shape]:
    return [shape for index, curve in enumerate(curves) for shape in _line(curve.points, index, x, y, at, value, said)]


def _line(
    points: Sequence[Prediction],
    index: int,
    x: Scale,
    y: Scale,
    at: Callable[[Prediction], float],
    value: Value,
    said: Callable[[Prediction], str],
) -> list[Shape]:
    colour = series_colour(index)
    places = [
        (prediction, x(at(prediction)), y(height)) for prediction in points if (height := value(prediction)) is not None
    ]
    line = Line(tuple((across, up) for _, across, up in places), colour, 2.0)
    dots = [
        Dot(across, up, 4.0, colour, not prediction.fits, title=said(prediction)) for prediction, across, up in places
    ]
    return [line, *dots]


def _ideal(curves: Sequence[Curve], x: Scale, y: Scale, ideal: Callable) -> list[Shape]:
    lines: list[Shape] = []
    for curve in curves:
        points = [
            (x(_device(prediction)), y(value))
            for prediction in curve.points
            if (value := ideal(curve, prediction)) is not None
        ]
        if len(points) > 1:
            lines.append(Line(tuple(points), "muted", 1.5, True, f"{curve.name}: as fast as the smallest slice"))
    return lines


def _whiskers(curves: Sequence[Curve], x: Scale, y: Scale) -> list[Shape]:
    lines: list[Shape] = []
    for index, curve in enumerate(curves):
        timed = [(x(_device(prediction)), between) for prediction, between in _intervals(curve)]
        lines += [Line(((at, y(low)), (at, y(high))), series_colour(index), 1.5) for at, (low, high) in timed]
    return lines


def _intervals(curve: Curve) -> list[tuple[Prediction, tuple[float, float]]]:
    return [
        (prediction, phrases.drawn(prediction.interval_s, prediction.step_s))
        for prediction in curve.points
        if prediction.interval_s is not None
    ]


def _drawing(name: str, title: str, shapes: list[Shape], curves: Sequence[Curve], dashed: str = "") -> Drawing:
    key = legend([(curve.name, series_colour(index)) for index, curve in enumerate(curves)])
    if dashed:
        key += [Line(((RIGHT - 176, 10), (RIGHT - 154, 10)), "muted", 1.5, True), Label(RIGHT - 148, 14, dashed)]
    summary = f"{', '.join(curve.name for curve in curves)}; the tooltip of each point has its numbers."
    return Drawing(name, title, summary, WIDTH, HEIGHT, (*shapes, *key))


def _batch_text(prediction: Prediction) -> str:
    return f"{prediction.target.name}, {phrases.count(prediction.batch_size)} a step"


def _speed_text(prediction: Prediction) -> str:
    return f"{_batch_text(prediction)}: {phrases.rate(prediction.examples_per_s)} examples/s"


def _memory_text(prediction: Prediction) -> str:
    share = phrases.percent(phrases.memory_share(prediction.memory))
    return f"{_batch_text(prediction)}: {share}, {phrases.verdict(prediction)}"


def _step_text(prediction: Prediction) -> str:
    return f"{_batch_text(prediction)}: {phrases.seconds(prediction.step_s)}, {phrases.interval(prediction.interval_s)}"
