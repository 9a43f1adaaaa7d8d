"""The section of a page on the timeline of a run: a still picture, and the data of its script.

Idea: a picture cannot show a hundred thousand events. If there are too many for a page, neighbouring short events are
merged into one strip with their count. Long events are kept.

Rule: strips of a lane never overlap and keep their order. Cycles are rounded to integers here; the trace has the exact
values.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from anytpu.chip.page.lanes import LANES, colour_of, lane_of, part_name, part_ranges
from anytpu.chip.page.levels import Levels, buffer_levels, fifo_levels, peak, thinned
from anytpu.chip.page.record import ChipPage
from anytpu.chip.page.sections import shares
from anytpu.chip.page.time_plots import overview
from anytpu.chip.timing.record import Timing
from anytpu.report.drawing import svg
from anytpu.report.html import Markup, element, fold, joined, legend, section

MAX_STRIPS = 60_000
"""Maximum number of strips on a page."""

_BUCKET = 8.0
"""Strips are merged inside a bucket of this many resolutions only, so that a merged strip stays narrow."""

_PATIENCE = 6
"""Rounds that merge only strips of the same layer."""

_WORD = 2**32 - 1
"""Maximum of the script's integers."""

_MAX_LAYERS = 400
"""Maximum number of layers in the list to zoom to."""

HOW = (
    "Drag to move, double-click or Ctrl with the wheel to zoom. Keys: + and - zoom, 0 shows all, arrows go from event "
    "to event, Shift with arrows moves."
)


def timeline(timing: Timing) -> Markup:
    """Return the timeline: a canvas for the script, and a picture of the whole run for readers without scripts."""
    if not timing.events:
        return joined()
    buttons = [("in", "+", "Zoom in"), ("out", "-", "Zoom out"), ("left", "<", "Move left"),
               ("right", ">", "Move right"), ("all", "All", "Show the whole run")]  # fmt: skip
    layers = part_ranges(timing)
    options = [
        element("option", part_name(timing, tag), value=index) for index, (_, _, tag) in enumerate(layers[:_MAX_LAYERS])
    ]
    zoom = element("option", "zoom to a layer", value="-1")
    choice = element("select", zoom, *options, aria_label="Zoom to a layer") if options else None
    label = f"Activity of each unit over time: {shares(timing)}"
    canvas = element("canvas", tabindex=0, role="img", aria_label=label, aria_describedby="timeline-how")
    return section(
        "timeline",
        "Timeline",
        f"{len(timing.events):,} events, predicted",
        fold(
            "The work of each unit",
            element(
                "div",
                *(element("button", text, type="button", data_zoom=to, aria_label=aria) for to, text, aria in buttons),
                choice,
                class_="tools",
            ),
            element("p", HOW, class_="remark", id="timeline-how"),
            element("div", canvas, element("div", class_="tip", hidden="hidden"), class_="stage"),
            legend([(colour_of(kind), kind) for kind in kinds_of(timing)]),
            element("p", class_="readout", role="status"),
            element("noscript", still(timing)),
        ),
    )


def still(timing: Timing) -> Markup:
    """Return the whole run as a picture."""
    return svg.captioned(overview(timing))


def scene(page: ChipPage, instructions: dict[int, str]) -> dict[str, Any] | None:
    """Return the script's data for the timeline; None without events.

    Args:
        page: the records of the page.
        instructions: texts of instructions by index.
    """
    timing = page.timing
    if not timing.events or not timing.cycles:
        return None
    fifo, buffer = fifo_levels(timing), buffer_levels(timing, page.image)
    design = timing.design
    levels = [_level("weight FIFO", "tiles", "c4", fifo, design.weight_fifo_tiles, timing)] if fifo else []
    if buffer:
        levels.append(_level("Unified Buffer", "bytes", "c1", buffer, design.unified_buffer_bytes, timing))
    return {
        "cycles": timing.cycles,
        "clock_hz": design.clock_hz,
        "kinds": [{"name": kind, "colour": colour_of(kind)} for kind in kinds_of(timing)],
        "parts": [part.name for part in timing.parts],
        "spans": [_span(span, timing) for span in timing.spans],
        "ranges": [_span(span, timing) for span in part_ranges(timing)],
        "strips": packed(strips(timing), timing.cycles),
        "levels": levels,
        "instructions": instructions,
    }


def _span(span: tuple[float, float, int], timing: Timing) -> list[float]:
    """Return (start, stop, index of the part); the part before the first layer has the last index."""
    start, stop, tag = span
    return [round(start, 1), round(stop, 1), tag if tag >= 0 else len(timing.parts) - 1]


def _level(name: str, unit: str, colour: str, levels: Levels, limit: float, timing: Timing) -> dict[str, Any]:
    points = [[round(cycles), round(level)] for cycles, level in thinned(levels, timing.cycles)]
    return {"name": name, "unit": unit, "colour": colour, "limit": limit, "most": peak(levels) or 1.0, "points": points}


@dataclasses.dataclass(frozen=True, eq=False)
class Strips:
    """The strips of a lane as arrays of equal length, `(strips,)`.

    Attributes:
        start, stop: begin and end, in cycles.
        kind: index of the kind in `kinds_of` of the run.
        tag: index of the part of the program; -1 for none or several.
        instruction: index of the first instruction; -1 for none.
        count: number of merged events.
    """

    start: np.ndarray
    stop: np.ndarray
    kind: np.ndarray
    tag: np.ndarray
    instruction: np.ndarray
    count: np.ndarray


def kinds_of(timing: Timing) -> list[str]:
    """Return the kinds of events of a run, each once, sorted."""
    return sorted({event.kind for event in timing.events})


def strips(timing: Timing, most: int = MAX_STRIPS) -> list[Strips]:
    """Return the strips of each lane, at most `most` of all lanes together."""
    kinds = {kind: index for index, kind in enumerate(kinds_of(timing))}
    lanes = [_strips(timing, lane, kinds) for lane in range(len(LANES))]
    resolution = max(timing.cycles, 1.0) / most
    rounds = 0
    # Each round merges strips up to a doubled resolution, until all lanes together are small enough.
    while sum(len(lane.start) for lane in lanes) > max(most, len(LANES)):
        lanes = [_merged(lane, resolution, len(kinds), across_parts=rounds >= _PATIENCE) for lane in lanes]
        resolution, rounds = 2 * resolution, rounds + 1
    return lanes


def packed(lanes: Sequence[Strips], cycles: float) -> dict[str, Any]:
    """Return strips as the script's data: base64 of little-endian arrays, and the number of cycles per count.

    Args:
        lanes: the strips.
        cycles: cycles of the whole run; above 2**32 - 1 a count stands for several cycles.
    """
    step = max(1.0, cycles / _WORD)
    return {
        "step": step,
        "lanes": [_packed(lane.name, packed_lane, step) for lane, packed_lane in zip(LANES, lanes, strict=True)],
    }


def _packed(name: str, lane: Strips, step: float) -> dict[str, Any]:
    start, stop = np.round(lane.start / step), np.round(lane.stop / step)
    arrays = {
        "start": start.astype("<u4"),
        "length": (stop - start).astype("<u4"),
        "kind": lane.kind.astype("<u1"),
        "tag": lane.tag.astype("<i2"),
        "instruction": lane.instruction.astype("<i4"),
        "count": lane.count.astype("<u4"),
    }
    return {"name": name, **{key: base64.b64encode(array.tobytes()).decode() for key, array in arrays.items()}}


def _strips(timing: Timing, lane: int, kinds: dict[str, int]) -> Strips:
    events = sorted(
        (event for event in timing.events if lane_of(event) == lane),
        key=lambda event: (event.start_cycles, event.stop_cycles),
    )
    return Strips(
        np.array([event.start_cycles for event in events], np.float64),
        np.array([event.stop_cycles for event in events], np.float64),
        np.array([kinds[event.kind] for event in events], np.int64),
        np.array([event.tag for event in events], np.int64),
        np.array([event.instruction for event in events], np.int64),
        np.ones(len(events), np.int64),
    )


def _merged(lane: Strips, resolution: float, kinds: int, across_parts: bool) -> Strips:
    """Merge strips shorter than the resolution with neighbours at a distance below the resolution."""
    if len(lane.start) < 2:
        return lane
    # 1. Whether each strip joins the one before it.
    is_short = lane.stop - lane.start < resolution
    bucket = np.floor(lane.start / (_BUCKET * resolution))
    joins = is_short[1:] & is_short[:-1] & (lane.start[1:] - lane.stop[:-1] < resolution)
    joins &= bucket[1:] == bucket[:-1]
    if not across_parts:
        joins &= lane.tag[1:] == lane.tag[:-1]
    first = np.concatenate([[0], np.flatnonzero(~joins) + 1])
    # 2. The kind of a merged strip is the one with the most cycles. Its part is the common one.
    busy = np.zeros((kinds, len(lane.start)))
    busy[lane.kind, np.arange(len(lane.start))] = lane.stop - lane.start
    return Strips(
        lane.start[first],
        np.maximum.reduceat(lane.stop, first),
        np.add.reduceat(busy, first, axis=1).argmax(axis=0),
        np.where(np.minimum.reduceat(lane.tag, first) == np.maximum.reduceat(lane.tag, first), lane.tag[first], -1),
        lane.instruction[first],
        np.add.reduceat(lane.count, first),
    )
