"""The plot of a run's cost against its time, on demand and spot."""

from __future__ import annotations

from collections.abc import Sequence

from anytpu.planning.records import Cost, Plan, Prediction
from anytpu.report.drawing.axes import Scale, duration, durations, fitting, horizontal, vertical
from anytpu.report.drawing.frame import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, along, place_labels
from anytpu.report.drawing.shapes import Dot, Drawing, Label, Line, Shape
from anytpu.report.plan import costs, phrases

Point = tuple[Prediction, float, float, float | None, float | None]
"""A prediction, its time in seconds and cost in USD on demand, and both on spot or None."""


def cost_time(plan: Plan) -> Drawing | None:
    """Return a disc for each system with a price, and a ring for its spot price; None for fewer than two systems."""
    points, work = _points(plan)
    if len(points) < 2:
        return None
    spans = {id(prediction): _span(prediction, time_s) for prediction, time_s, *_ in points}
    x = durations([*(end for span in spans.values() for end in span), *(s for *_, s, _ in points if s)], LEFT, RIGHT)
    prices = [usd * end / time_s for prediction, time_s, usd, _, _ in points for end in spans[id(prediction)] if time_s]
    y = fitting([*prices, *(spot for *_, spot in points if spot)], BOTTOM, TOP)
    marks = [shape for point in points for shape in _marks(point, x, y, spans[id(point[0])])]
    shapes = [
        *horizontal(x, BOTTOM, duration, f"time of {work}", TOP),
        *vertical(y, LEFT, _round_usd, RIGHT),
        *_key(any(spot is not None for *_, spot in points)),
        *marks,
        *_names(plan, points, x, y, along(mark.points for mark in marks if isinstance(mark, Line))),
    ]
    summary = (
        "; ".join(f"{kind}: {prediction.target.name}, {why}" for kind, prediction, why in costs.choice(plan)) + "."
    )
    return Drawing("cost_against_time", f"Cost against time of {work}", summary, WIDTH, HEIGHT, tuple(shapes))


def _points(plan: Plan) -> tuple[list[Point], str]:
    """Return the systems that have a price, and the priced work: a run if all costs of a run are known, else a unit."""
    priced = [
        (prediction, prediction.cost)
        for prediction in plan.predictions
        if prediction.cost and prediction.cost.usd_per_step and prediction.step_s
    ]
    if priced and all(cost.usd_per_run and cost.run_s for _, cost in priced):
        return [(prediction, *_run(cost)) for prediction, cost in priced], "a run"
    work = costs.unit(plan)
    amounts = [(prediction, *work.amounts(prediction)) for prediction, _ in priced]
    return [(prediction, time_s or 0.0, usd or 0.0, None, None) for prediction, time_s, usd in amounts], work.name


def _run(cost: Cost) -> tuple[float, float, float | None, float | None]:
    return cost.run_s or 0.0, cost.usd_per_run or 0.0, cost.spot_run_s, cost.spot_usd_per_run


def _span(prediction: Prediction, time_s: float) -> tuple[float, float]:
    """Return the interval of the step time, scaled to the time of many steps."""
    if prediction.interval_s is None or not prediction.step_s:
        return time_s, time_s
    low_s, high_s = phrases.drawn(prediction.interval_s, prediction.step_s)
    return time_s * low_s / prediction.step_s, time_s * high_s / prediction.step_s


def _key(has_spot: bool) -> list[Shape]:
    shapes: list[Shape] = [
        Line(((LEFT, 10), (LEFT + 24, 10)), "c0", 1.5),
        Dot(LEFT + 12, 10, 5, "c0"),
        Label(LEFT + 30, 14, "on demand, with its interval"),
    ]
    return [*shapes, Dot(LEFT + 256, 10, 4.5, "c1", True), Label(LEFT + 266, 14, "spot")] if has_spot else shapes


def _marks(point: Point, x: Scale, y: Scale, span: tuple[float, float]) -> list[Shape]:
    prediction, time_s, usd, spot_s, spot_usd = point
    said = f"{prediction.target.name}: {phrases.seconds(time_s)}, {phrases.usd(usd)} on demand"
    shapes: list[Shape] = []
    if spot_s is not None and spot_usd is not None:
        spot = f"{prediction.target.name}: {phrases.seconds(spot_s)}, {phrases.usd(spot_usd)} on spot"
        shapes += [
            Line(((x(time_s), y(usd)), (x(spot_s), y(spot_usd))), "c1", 1.0, True),
            Dot(x(spot_s), y(spot_usd), 4.5, "c1", True, title=spot),
        ]
    ends = [x(end) for end in span]
    # The cost is proportional to the time, so the interval is a diagonal line.
    heights = [y(usd * end / time_s) if time_s else y(usd) for end in span]
    shapes.append(Line(((ends[0], heights[0]), (ends[1], heights[1])), "c0", 1.5, title=said))
    return [*shapes, Dot(x(time_s), y(usd), 5.5, "c0", title=said)]


def _names(
    plan: Plan, points: Sequence[Point], x: Scale, y: Scale, lines: Sequence[tuple[float, float]]
) -> list[Label]:
    marks = {id(prediction): kind for kind, prediction, _ in costs.choice(plan)}
    named = [
        (
            x(time_s),
            y(usd),
            f"{prediction.target.name}{f', {marks[id(prediction)]}' if id(prediction) in marks else ''}",
            "ink",
        )
        for prediction, time_s, usd, *_ in points
    ]
    rings = [(x(spot_s), y(spot)) for *_, spot_s, spot in points if spot_s is not None and spot is not None]
    return place_labels(named, rings, lines=lines)


def _round_usd(amount: float) -> str:
    digits = len(f"{amount:.9f}".rstrip("0").split(".")[1])
    return f"${amount:,.{max(digits, 2) if digits else 0}f}"
