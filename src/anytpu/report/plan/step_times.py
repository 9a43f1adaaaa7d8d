"""The bar plot of each system's step time with its interval."""

from __future__ import annotations

from anytpu.planning.records import Plan, Prediction
from anytpu.report.drawing.axes import Scale, duration, durations, horizontal
from anytpu.report.drawing.frame import WIDTH
from anytpu.report.drawing.shapes import Box, Drawing, Label, Line, Shape, shortened, text_width
from anytpu.report.plan import phrases

_ROW = 30.0
_TOP, _KEY = 8.0, 20.0
_MAX_NAME_WIDTH = 130.0


def step_times(plan: Plan) -> Drawing | None:
    """Return a bar for each system with a whisker over its interval; None for fewer than two systems."""
    timed = [prediction for prediction in plan.predictions if prediction.interval_s is not None]
    if len(plan) < 2 or not timed:
        return None
    names = min(max(text_width(prediction.target.name) for prediction in plan.predictions), _MAX_NAME_WIDTH)
    top = _TOP + _KEY
    bottom = top + _ROW * len(plan)
    longest = [
        phrases.drawn(prediction.interval_s, prediction.step_s)[1] for prediction in timed if prediction.interval_s
    ]
    scale = durations(longest, names + 14, WIDTH - 28)
    shapes: list[Shape] = horizontal(scale, bottom, duration, "time of one step", top)
    shapes += _key(scale.start)
    for row, prediction in enumerate(plan.predictions):
        middle = top + _ROW * (row + 0.5)
        shapes.append(Label(names + 6, middle + 4, shortened(prediction.target.name, names), "end"))
        shapes += _bar(prediction, scale, middle)
    best = plan.fastest
    summary = f"{best.target.name} is fastest, {phrases.at_least(best, phrases.seconds(best.step_s))}." if best else ""
    return Drawing("step_time", "Step time", summary, WIDTH, bottom + 46, tuple(shapes))


def _key(left: float) -> list[Shape]:
    middle = _TOP + 4
    return [
        Box(left, middle - 5, 10, 10, "c0", 0.85),
        Label(left + 16, middle + 4, "predicted"),
        *_whisker(left + 96, left + 120, middle),
        Label(left + 128, middle + 4, "expected between"),
    ]


def _whisker(low: float, high: float, middle: float, said: str = "") -> list[Shape]:
    ends = [Line(((end, middle - 4), (end, middle + 4)), "ink", 1.5) for end in (low, high)]
    return [Line(((low, middle), (high, middle)), "ink", 1.5, title=said), *ends]


def _bar(prediction: Prediction, scale: Scale, middle: float) -> list[Shape]:
    if prediction.step_s is None or prediction.interval_s is None:
        return [Label(scale.start + 6, middle + 4, f"does not fit: {phrases.verdict(prediction)}", colour="c3")]
    low, high = (scale(end_s) for end_s in phrases.drawn(prediction.interval_s, prediction.step_s))
    said = f"{prediction.target.name}: {phrases.seconds(prediction.step_s)}, {phrases.interval(prediction.interval_s)}"
    end = scale(prediction.step_s)
    return [
        Box(scale.start, middle - 9, max(end - scale.start, 1.5), 18, "c0", 0.85, said),
        *_whisker(low, high, middle, said),
    ]
