"""The curves in a plan, and their plots: one system at several batch sizes, one chip at several numbers of devices.

Idea: a plan does not declare its curves; predictions that differ in one variable form one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from anytpu.planning.page import phrases
from anytpu.planning.page.text_table import TextTable
from anytpu.planning.records import Plan, Prediction
from anytpu.report.drawing.axes import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    doubling,
    duration,
    fitting,
    horizontal,
    legend,
    linear,
    logarithmic,
    series_colour,
    vertical,
)
from anytpu.report.drawing.shapes import Dot, Drawing, Label, Polyline, Shape

Value = Callable[["Curve", Prediction], float | None]
"""A number of a point of a curve, or None."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """Predictions that differ in one variable, sorted by it.

    Attributes:
        name: the common system ("v3-8") or chip ("v3").
        points: the predictions, at least two, including those that do not fit.
    """

    name: str
    points: tuple[Prediction, ...]


def batch_curves(plan: Plan) -> list[Curve]:
    """Return the systems that were planned at several batches."""
    curves: dict[str, dict[int, Prediction]] = {}
    for prediction in _all(plan):
        if prediction.batch_size is not None:
            curves.setdefault(prediction.target.name, {}).setdefault(prediction.batch_size, prediction)
    return _curves(curves)


def scaling_curves(plan: Plan) -> list[Curve]:
    """Return the chips that were planned in several slices, with the first prediction of each slice."""
    curves: dict[str, dict[int, Prediction]] = {}
    for prediction in _all(plan):
        curves.setdefault(prediction.target.chip.name, {}).setdefault(prediction.target.devices, prediction)
    return _curves(curves)


def ideal_step_s(curve: Curve, prediction: Prediction) -> float | None:
    """Return the step time of a slice with the per-device speed of the smallest slice, in seconds."""
    base = next((point for point in curve.points if point.examples_per_s and not point.is_floor), None)
    if base is None or base.examples_per_s is None or prediction.batch_size is None:
        return None
    return prediction.batch_size / (base.examples_per_s / base.target.devices * prediction.target.devices)


def efficiency(curve: Curve, prediction: Prediction) -> float | None:
    """Return the per-device speed relative to the smallest slice."""
    ideal_s = ideal_step_s(curve, prediction)
    return (
        ideal_s / prediction.step_s if ideal_s is not None and prediction.step_s and not prediction.is_floor else None
    )


def curve_tables(plan: Plan) -> list[tuple[str, TextTable]]:
    """Return a table with its title for each curve: batches of one system, slices of one chip."""
    batches = [(f"batches of {curve.name}", _table(curve, False)) for curve in batch_curves(plan)]
    return [*batches, *((f"scaling of {curve.name}", _table(curve, True)) for curve in scaling_curves(plan))]


def _table(curve: Curve, is_scaling: bool) -> TextTable:
    name = ("system",) if is_scaling else ()
    titles = (*name, "batch", "step", "between", "examples/s", "of ideal" if is_scaling else "MFU", "memory")
    rows = [
        (
            *([point.target.name] if is_scaling else []),
            phrases.count(point.batch_size),
            phrases.at_least(point, phrases.seconds(point.step_s)),
            phrases.interval(point.interval_s),
            phrases.most(point, phrases.rate(point.examples_per_s)),
            phrases.percent(efficiency(curve, point) if is_scaling else point.mfu),
            phrases.percent(phrases.memory_share(point.memory)),
        )
        for point in curve.points
    ]
    faults = [index for index, point in enumerate(curve.points) if not point.fits]
    return TextTable(titles, rows, name, faults=faults)


def _all(plan: Plan) -> Iterable[Prediction]:
    return (*plan.predictions, *plan.sweep)


def _curves(curves: dict[str, dict[int, Prediction]]) -> list[Curve]:
    return [
        Curve(name, tuple(points[key] for key in sorted(points))) for name, points in curves.items() if len(points) > 1
    ]


@dataclasses.dataclass(frozen=True)
class _SweepPlot:
    """A plot of curves over the batch size or the number of devices.

    Attributes:
        curves: the curves, each with a colour by its index.
        at: the variable of a point.
        x: scale of the variable.
        y: scale of the values.
    """

    curves: Sequence[Curve]
    at: Callable[[Prediction], float]
    x: Scale
    y: Scale

    def axes(self, title: str, write_y: Callable[[float], str]) -> list[Shape]:
        """Return both axes."""
        across = horizontal(self.x, BOTTOM, phrases.count, title, TOP)
        return [*vertical(self.y, LEFT, write_y, RIGHT), *across]

    def lines(self, value: Value, said: Callable[[Prediction], str]) -> list[Shape]:
        """Return a line for each curve through its known values; a ring marks a point that does not fit."""
        shapes: list[Shape] = []
        for index, curve in enumerate(self.curves):
            colour = series_colour(index)
            places = [(point, self.x(self.at(point)), self.y(up)) for point, up in _known(curve, value)]
            shapes.append(Polyline(tuple((x, y) for _, x, y in places), colour, 2.0))
            shapes += [Dot(x, y, 4.0, colour, not point.fits, title=said(point)) for point, x, y in places]
        return shapes

    def ideal(self) -> list[Shape]:
        """Return a dashed line for each curve, along its ideal step times."""
        lines: list[Shape] = []
        for curve in self.curves:
            points = [(self.x(self.at(point)), self.y(ideal_s)) for point, ideal_s in _known(curve, ideal_step_s)]
            if len(points) > 1:
                lines.append(
                    Polyline(tuple(points), "muted", 1.5, True, f"{curve.name}: as fast as the smallest slice")
                )
        return lines

    def whiskers(self) -> list[Shape]:
        """Return a vertical line over the interval of each step time."""
        return [
            Polyline(tuple((self.x(self.at(point)), self.y(end_s)) for end_s in ends_s), series_colour(index), 1.5)
            for index, curve in enumerate(self.curves)
            for point, ends_s in _intervals(curve)
        ]

    def drawing(self, name: str, title: str, shapes: Sequence[Shape], dashed: str = "") -> Drawing:
        """Return the plot with its legend; `dashed` explains its dashed line."""
        key = legend([(curve.name, series_colour(index)) for index, curve in enumerate(self.curves)])
        if dashed:
            key += [
                Polyline(((RIGHT - 176, 10), (RIGHT - 154, 10)), "muted", 1.5, True),
                Label(RIGHT - 148, 14, dashed),
            ]
        summary = f"{', '.join(curve.name for curve in self.curves)}; the tooltip of each point has its numbers."
        return Drawing(name, title, summary, WIDTH, HEIGHT, (*shapes, *key))


def _plot(curves: Sequence[Curve], at: Callable[[Prediction], float], y: Scale) -> _SweepPlot:
    x = doubling([at(point) for curve in curves for point in curve.points], LEFT, RIGHT)
    return _SweepPlot(curves, at, x, y)


def batch_speed(plan: Plan) -> Drawing | None:
    """Return examples per second over the batch size, a line per system; a ring marks a batch that does not fit."""
    curves = batch_curves(plan)
    speeds = [value for curve in curves for _, value in _known(curve, _speed) if value]
    if not speeds:
        return None
    plot = _plot(curves, _batch, logarithmic(speeds, BOTTOM, TOP))
    shapes = [*plot.axes("examples of a step", phrases.count), *plot.lines(_speed, _speed_text)]
    return plot.drawing("batch_speed", "Examples a second over the batch", shapes)


def batch_memory(plan: Plan) -> Drawing | None:
    """Return the used share of the memory over the batch size, a line per system, with the limit."""
    curves = batch_curves(plan)
    shares = [value for curve in curves for _, value in _known(curve, _memory_share) if value]
    if not shares:
        return None
    plot = _plot(curves, _batch, linear([min(max(shares), 1.5), 1.05], BOTTOM, TOP))
    full = plot.y(1.0)
    shapes = [
        *plot.axes("examples of a step", phrases.percent),
        Polyline(((LEFT, full), (RIGHT, full)), "c3", 1.5, True, "the memory that a program may use"),
        Label(LEFT + 6, full - 6, "does not fit", "start", "c3"),
        *dataclasses.replace(plot, curves=_until_full(curves)).lines(_memory_share, _memory_text),
    ]
    return plot.drawing("batch_memory", "Memory of a device over the batch", shapes)


def scaling_time(plan: Plan) -> Drawing | None:
    """Return the step time over the number of devices, with its interval and the ideal step time."""
    curves = _timed(scaling_curves(plan))
    if not curves:
        return None
    ends_s = [end_s for curve in curves for _, ends in _intervals(curve) for end_s in ends]
    ideals_s = [value for curve in curves for _, value in _known(curve, ideal_step_s) if value]
    plot = _plot(curves, _device, fitting([*ends_s, *ideals_s], BOTTOM, TOP))
    shapes = [
        *plot.axes("devices; a vertical line is the expected interval of a step", duration),
        *plot.ideal(),
        *plot.whiskers(),
        *plot.lines(lambda _, point: point.step_s, _step_text),
    ]
    return plot.drawing("scaling_step_time", "Step time over the devices", shapes, dashed="as fast as the smallest")


def scaling_efficiency(plan: Plan) -> Drawing | None:
    """Return the speed per device over the number of devices, relative to the smallest slice."""
    curves = _timed(scaling_curves(plan))
    if not curves:
        return None
    values = [value for curve in curves for _, value in _known(curve, efficiency) if value]
    plot = _plot(curves, _device, linear([*values, 1.0], BOTTOM, TOP))
    full = plot.y(1.0)
    shapes = [
        *plot.axes("devices", phrases.percent),
        Polyline(((LEFT, full), (RIGHT, full)), "muted", 1.5, True, "ideal"),
        *plot.lines(efficiency, _step_text),
    ]
    return plot.drawing("scaling_efficiency", "Efficiency over the devices", shapes, dashed="ideal")


def _known(curve: Curve, value: Value) -> list[tuple[Prediction, float]]:
    """Return the points of a curve that have a value, each with it."""
    return [(point, known) for point in curve.points if (known := value(curve, point)) is not None]


def _intervals(curve: Curve) -> list[tuple[Prediction, tuple[float, float]]]:
    return [
        (point, phrases.drawn(point.interval_s, point.step_s)) for point in curve.points if point.interval_s is not None
    ]


def _until_full(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves up to the first point that does not fit, which is drawn at the upper edge of the plot."""
    ends = [next((n for n, point in enumerate(curve.points, 1) if not point.fits), None) for curve in curves]
    return [Curve(curve.name, curve.points[:end]) for curve, end in zip(curves, ends, strict=True)]


def _timed(curves: Sequence[Curve]) -> list[Curve]:
    return [curve for curve in curves if sum(point.step_s is not None for point in curve.points) > 1]


def _batch(point: Prediction) -> float:
    return float(point.batch_size or 0)


def _device(point: Prediction) -> float:
    return float(point.target.devices)


def _speed(_curve: Curve, point: Prediction) -> float | None:
    return point.examples_per_s


def _memory_share(_curve: Curve, point: Prediction) -> float | None:
    return phrases.memory_share(point.memory)


def _batch_text(point: Prediction) -> str:
    return f"{point.target.name}, {phrases.count(point.batch_size)} a step"


def _speed_text(point: Prediction) -> str:
    return f"{_batch_text(point)}: {phrases.rate(point.examples_per_s)} examples/s"


def _memory_text(point: Prediction) -> str:
    share = phrases.percent(phrases.memory_share(point.memory))
    return f"{_batch_text(point)}: {share}, {phrases.verdict(point)}"


def _step_text(point: Prediction) -> str:
    return f"{_batch_text(point)}: {phrases.seconds(point.step_s)}, {phrases.interval(point.interval_s)}"
