"""The plots of runs: one for each metric, with its value on validation data dashed, and one for each rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from anytpu import units
from anytpu.report.drawing import axes
from anytpu.report.drawing.axes import BOTTOM, LEFT, RIGHT, TOP
from anytpu.report.drawing.shapes import Drawing, Polyline
from anytpu.report.wording import one_line
from anytpu.train.record import RunReader

_MAX_POINTS = 240
_MAX_PLOTS = 16
_RATES = {"examples/s": "examples_per_s", "step time, s": "step_s", "MFU": "mfu"}


class _Curve(NamedTuple):
    title: str
    colour: str
    points: list[tuple[int, float]]
    is_dashed: bool


def values_of(line: dict[str, Any]) -> dict[str, float]:
    """Return the loss and the metrics of a point, or of the end of an epoch."""
    return {**({"loss": line["loss"]} if "loss" in line else {}), **line["metrics"]}


def plots(names: Sequence[str], runs: Sequence[RunReader]) -> list[Drawing]:
    """Return the plots of runs with these names."""
    measured = [[(point, values_of(point)) for point in run.points] for run in runs]
    known = [values for points in measured for _, values in points] + [e["metrics"] for run in runs for e in run.epochs]
    metrics = dict.fromkeys(name.removeprefix("val_") for values in known for name in values)
    drawings = []
    for metric in [*metrics, *_RATES][:_MAX_PLOTS]:
        curves = []
        for index, (name, run, points) in enumerate(zip(names, runs, measured, strict=True)):
            key = _RATES.get(metric)
            values = ((p["step"], p.get(key) if key else own.get(metric)) for p, own in points)
            held_out = ((epoch["step"], epoch["metrics"].get(f"val_{metric}")) for epoch in run.epochs)
            is_alone = len(runs) == 1
            colour = axes.series_colour(index)
            curves.append(_Curve(name, colour, _thinned(values), False))
            curves.append(_Curve("validation" * is_alone, "c1" if is_alone else colour, _thinned(held_out), True))
        curves = [curve for curve in curves if curve.points]
        drawings += [_plot(metric, curves)] if curves else []
    return drawings


def _thinned(values: Iterable[tuple[int, float | None]]) -> list[tuple[int, float]]:
    """Return the points that have a value; of many, the lowest and the highest of each stretch."""
    # No scale has ticks for numbers that differ in the last bits only, or are almost 0.
    points = [(step, float(f"{round(value, 100):.9g}")) for step, value in values if value is not None]
    if len(points) <= _MAX_POINTS:
        return points
    size = math.ceil(2 * len(points) / _MAX_POINTS)
    kept = [points[0]]
    for start in range(0, len(points), size):
        stretch = [(value, step) for step, value in points[start : start + size]]
        kept += sorted((step, value) for value, step in {min(stretch), max(stretch)})
    return [*kept, points[-1]]


def _plot(name: str, curves: Sequence[_Curve]) -> Drawing:
    values = [value for curve in curves for _, value in curve.points]
    # What falls by orders of magnitude is seen on a logarithmic scale.
    falls = any(curve.points[-1][1] < curve.points[0][1] for curve in curves)
    lowest = min(values)
    y = (axes.fitting if falls and lowest > 0 else axes.linear if lowest >= 0 else axes.spanning)(values, BOTTOM, TOP)
    x = axes.linear([step for curve in curves for step, _ in curve.points], LEFT, RIGHT)
    write = units.format_count if name in _RATES and max(values) > 99 else "{:.3g}".format
    shapes = [*axes.horizontal(x, BOTTOM, units.format_count, "step", TOP), *axes.vertical(y, LEFT, write, RIGHT)]
    for curve in curves:
        places = [(x(step), y(value)) for step, value in curve.points]
        places += [(places[0][0] + 2, places[0][1])] if len(places) == 1 else []
        shapes.append(Polyline(tuple(places), curve.colour, 1.6, curve.is_dashed, curve.title))
    named = [(curve.title, curve.colour) for curve in curves if curve.title]
    shapes += axes.legend(named) if len(named) > 1 else []
    summary = f"From {values[0]:.4g} to {values[-1]:.4g}."
    return Drawing(name, one_line(name), summary, axes.WIDTH, axes.HEIGHT, tuple(shapes))
