"""A still picture of the whole run: a lane per unit, shaded by its utilisation, and the layers above them."""

from __future__ import annotations

from anytpu.chip.timing.record import Timing
from anytpu.report.chip.kinds import colour_of
from anytpu.report.chip.lanes import LANES, lane_of, part_name
from anytpu.report.chip.memory_map import thousands
from anytpu.report.drawing.axes import Scale, horizontal
from anytpu.report.drawing.frame import series_colour
from anytpu.report.drawing.shapes import Box, Drawing, Label, Shape, shortened
from anytpu.report.wording import one_line

_WIDTH, _HEIGHT = 1000.0, 304.0
_LEFT, _RIGHT, _TOP, _LANE = 120.0, 984.0, 12.0, 34.0
_BINS = 432


def overview(timing: Timing) -> Drawing | None:
    """Return the picture of the run; None if its events are not known."""
    if not timing.events or not timing.cycles:
        return None
    x = thousands(timing.cycles, _LEFT, _RIGHT)
    bottom = _TOP + _LANE * (len(LANES) + 1)
    shapes = [
        *horizontal(x, bottom, lambda tick: f"{tick:,g}", "thousand cycles, predicted", _TOP),
        Label(_LEFT - 8, _TOP + 19, "layer", "end", "muted"),
        *_layers(timing, x),
    ]
    for index, lane in enumerate(LANES):
        top = _TOP + _LANE * (index + 1)
        shapes.append(Label(_LEFT - 8, top + 19, lane.name, "end", "muted"))
        shapes += _lane(timing, index, top)
    summary = f"{len(timing.events):,} events in {timing.cycles:,.0f} cycles."
    return Drawing("timeline", "Activity of each unit over time, predicted", summary, _WIDTH, _HEIGHT, tuple(shapes))


def _layers(timing: Timing, x: Scale) -> list[Shape]:
    shapes: list[Shape] = []
    for start, stop, tag in timing.spans:
        left, right = x(start / 1e3), x(stop / 1e3)
        if right - left < 0.5:
            continue
        name = one_line(part_name(timing, tag))
        said = f"{name}: cycles {start:,.0f} to {stop:,.0f}"
        shapes.append(Box(left, _TOP + 5, right - left, _LANE - 10, series_colour(tag), 0.35, said))
        if right - left > 40:
            shapes.append(Label(left + 4, _TOP + 21, shortened(name, right - left - 8, 11.0), size=11.0))
    return shapes


def _lane(timing: Timing, lane: int, top: float) -> list[Shape]:
    """Return a box for each run of bins with the same main kind of event; its opacity is the busy share."""
    busy: list[dict[str, float]] = [{} for _ in range(_BINS)]
    size = timing.cycles / _BINS
    for event in timing.events:
        if lane_of(event) == lane:
            _spread(busy, event.start_cycles / size, event.stop_cycles / size, event.kind)
    runs: list[tuple[int, int, str, float]] = []
    for index, kinds in enumerate(busy):
        if not kinds:
            continue
        kind = max(kinds, key=lambda name: kinds[name])
        shade = min(max(round(sum(kinds.values()) * 4) / 4, 0.25), 1.0)
        if runs and runs[-1][1] == index and runs[-1][2:] == (kind, shade):
            runs[-1] = (runs[-1][0], index + 1, kind, shade)
        else:
            runs.append((index, index + 1, kind, shade))
    width = (_RIGHT - _LEFT) / _BINS
    return [
        Box(
            _LEFT + first * width, top + 5, (last - first) * width, _LANE - 10, colour_of(kind), shade, f"mostly {kind}"
        )
        for first, last, kind, shade in runs
    ]


def _spread(busy: list[dict[str, float]], start: float, stop: float, kind: str) -> None:
    for index in range(int(start), min(int(stop) + 1, len(busy))):
        part = min(stop, index + 1) - max(start, index)
        if part > 0:
            busy[index][kind] = busy[index].get(kind, 0.0) + part
