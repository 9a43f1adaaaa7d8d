"""Plots that compare the systems of a plan: step times with their intervals, cost against time."""

from __future__ import annotations

from typing import NamedTuple

from anytpu.planning.page import costs, phrases
from anytpu.planning.records import Plan, Prediction
from anytpu.report.drawing.axes import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    along,
    duration,
    durations,
    fitting,
    horizontal,
    place_labels,
    vertical,
)
from anytpu.report.drawing.shapes import Dot, Drawing, Label, Polyline, Rectangle, Shape, shortened, text_width

_ROW = 30.0
_ROWS_TOP, _KEY = 8.0, 20.0
_MAX_NAME_WIDTH = 130.0


class _PricedSystem(NamedTuple):
    """A point of the plot of costs.

    Attributes:
        name: name of the system.
        label: its label in the plot.
        time_s: time on demand, in seconds.
        usd: cost on demand, in USD.
        interval: ends of the interval of the step time, as fractions of the predicted step time.
        spot: time in seconds and cost in USD on spot, or None.
    """

    name: str
    label: str
    time_s: float
    usd: float
    interval: tuple[float, float]
    spot: tuple[float, float] | None

    @property
    def ends(self) -> list[tuple[float, float]]:
        """Time and cost at both ends of the interval. The cost is proportional to the time."""
        return [(self.time_s * part, self.usd * part) for part in self.interval]


def cost_time(plan: Plan) -> Drawing | None:
    """Return a disc for each system with a price, and a ring for its spot price; None for fewer than two systems."""
    points, work = _priced_systems(plan)
    if len(points) < 2:
        return None
    spots = [point.spot for point in points if point.spot]
    corners = [*(end for point in points for end in point.ends), *spots]
    x = durations([time_s for time_s, _ in corners], LEFT, RIGHT)
    y = fitting([usd for _, usd in corners], BOTTOM, TOP)
    marks = [shape for point in points for shape in _marks(point, x, y)]
    labels = place_labels(
        [(x(point.time_s), y(point.usd), point.label, "ink") for point in points],
        [(x(time_s), y(usd)) for time_s, usd in spots],
        lines=along(mark.points for mark in marks if isinstance(mark, Polyline)),
    )
    shapes = [
        *horizontal(x, BOTTOM, duration, f"time of {work}", TOP),
        *vertical(y, LEFT, _round_usd, RIGHT),
        *_point_key(bool(spots)),
        *marks,
        *labels,
    ]
    chosen = [f"{kind}: {prediction.target.name}, {why}" for kind, prediction, why in costs.choice(plan)]
    title = f"Cost against time of {work}"
    return Drawing("cost_against_time", title, "; ".join(chosen) + ".", WIDTH, HEIGHT, tuple(shapes))


def _priced_systems(plan: Plan) -> tuple[list[_PricedSystem], str]:
    """Return the systems that have a price, and the priced work: a run if all costs of a run are known, else a unit."""
    priced = [
        (prediction, prediction.cost)
        for prediction in plan.predictions
        if prediction.cost and prediction.cost.usd_per_step and prediction.step_s
    ]
    is_run = all(cost.usd_per_run and cost.run_s for _, cost in priced)
    work = costs.unit(plan)
    kinds = {id(prediction): f", {kind}" for kind, prediction, _ in costs.choice(plan)}
    points = []
    for prediction, cost in priced:
        time_s, usd = (cost.run_s, cost.usd_per_run) if is_run else work.amounts(prediction)
        step_s, ends_s = prediction.step_s or 1.0, prediction.interval_s
        low_s, high_s = phrases.drawn(ends_s, step_s) if ends_s else (step_s, step_s)
        has_spot = is_run and cost.spot_run_s is not None and cost.spot_usd_per_run is not None
        spot = (cost.spot_run_s or 0.0, cost.spot_usd_per_run or 0.0) if has_spot else None
        name = prediction.target.name
        label = f"{name}{kinds.get(id(prediction), '')}"
        points.append(_PricedSystem(name, label, time_s or 0.0, usd or 0.0, (low_s / step_s, high_s / step_s), spot))
    return points, "a run" if is_run else work.name


def _point_key(has_spot: bool) -> list[Shape]:
    shapes: list[Shape] = [
        Polyline(((LEFT, 10), (LEFT + 24, 10)), "c0", 1.5),
        Dot(LEFT + 12, 10, 5, "c0"),
        Label(LEFT + 30, 14, "on demand, with its interval"),
    ]
    return [*shapes, Dot(LEFT + 256, 10, 4.5, "c1", True), Label(LEFT + 266, 14, "spot")] if has_spot else shapes


def _marks(point: _PricedSystem, x: Scale, y: Scale) -> list[Shape]:
    def text(time_s: float, usd: float, kind: str) -> str:
        return f"{point.name}: {phrases.seconds(time_s)}, {phrases.usd(usd)} {kind}"

    shapes: list[Shape] = []
    at = x(point.time_s), y(point.usd)
    if point.spot:
        ring = x(point.spot[0]), y(point.spot[1])
        shapes += [
            Polyline((at, ring), "c1", 1.0, True),
            Dot(*ring, 4.5, "c1", True, title=text(*point.spot, "on spot")),
        ]
    said = text(point.time_s, point.usd, "on demand")
    interval = Polyline(tuple((x(time_s), y(usd)) for time_s, usd in point.ends), "c0", 1.5, title=said)
    return [*shapes, interval, Dot(*at, 5.5, "c0", title=said)]


def _round_usd(amount: float) -> str:
    digits = len(f"{amount:.9f}".rstrip("0").split(".")[1])
    return f"${amount:,.{max(digits, 2) if digits else 0}f}"


def step_times(plan: Plan) -> Drawing | None:
    """Return a bar for each system with a whisker over its interval; None for fewer than two systems."""
    timed = [prediction for prediction in plan.predictions if prediction.interval_s is not None]
    if len(plan) < 2 or not timed:
        return None
    names = min(max(text_width(prediction.target.name) for prediction in plan.predictions), _MAX_NAME_WIDTH)
    top = _ROWS_TOP + _KEY
    bottom = top + _ROW * len(plan)
    longest = [
        phrases.drawn(prediction.interval_s, prediction.step_s)[1] for prediction in timed if prediction.interval_s
    ]
    scale = durations(longest, names + 14, WIDTH - 28)
    shapes: list[Shape] = horizontal(scale, bottom, duration, "time of one step", top)
    shapes += _bar_key(scale.start)
    for row, prediction in enumerate(plan.predictions):
        middle = top + _ROW * (row + 0.5)
        shapes.append(Label(names + 6, middle + 4, shortened(prediction.target.name, names), "end"))
        shapes += _bar(prediction, scale, middle)
    best = plan.fastest
    summary = f"{best.target.name} is fastest, {phrases.at_least(best, phrases.seconds(best.step_s))}." if best else ""
    return Drawing("step_time", "Step time", summary, WIDTH, bottom + 46, tuple(shapes))


def _bar_key(left: float) -> list[Shape]:
    middle = _ROWS_TOP + 4
    return [
        Rectangle(left, middle - 5, 10, 10, "c0", 0.85),
        Label(left + 16, middle + 4, "predicted"),
        *_whisker(left + 96, left + 120, middle),
        Label(left + 128, middle + 4, "expected between"),
    ]


def _whisker(low: float, high: float, middle: float, said: str = "") -> list[Shape]:
    ends = [Polyline(((end, middle - 4), (end, middle + 4)), "ink", 1.5) for end in (low, high)]
    return [Polyline(((low, middle), (high, middle)), "ink", 1.5, title=said), *ends]


def _bar(prediction: Prediction, scale: Scale, middle: float) -> list[Shape]:
    if prediction.step_s is None or prediction.interval_s is None:
        return [Label(scale.start + 6, middle + 4, f"does not fit: {phrases.verdict(prediction)}", colour="c3")]
    low, high = (scale(end_s) for end_s in phrases.drawn(prediction.interval_s, prediction.step_s))
    said = f"{prediction.target.name}: {phrases.seconds(prediction.step_s)}, {phrases.interval(prediction.interval_s)}"
    end = scale(prediction.step_s)
    return [
        Rectangle(scale.start, middle - 9, max(end - scale.start, 1.5), 18, "c0", 0.85, said),
        *_whisker(low, high, middle, said),
    ]
