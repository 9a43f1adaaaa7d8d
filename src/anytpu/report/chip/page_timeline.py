"""The section of a page on the timeline of a run: the data of its script, and a still picture."""

from __future__ import annotations

from typing import Any

from anytpu.chip.timing.record import Timing
from anytpu.report.chip.kinds import colour_of
from anytpu.report.chip.lanes import part_name, ranges
from anytpu.report.chip.levels import Levels, buffer_levels, fifo_levels, peak, thinned
from anytpu.report.chip.overview import overview
from anytpu.report.chip.page_causes import shares
from anytpu.report.chip.record import ChipPage
from anytpu.report.chip.strips import kinds_of, packed, strips
from anytpu.report.drawing import svg
from anytpu.report.web.markup import Markup, element, joined

HOW = (
    "Drag to move, double-click or Ctrl with the wheel to zoom; with the keyboard: + and - zoom, 0 shows all, arrows "
    "go from event to event and from lane to lane, Shift with arrows moves."
)
_MAX_LAYERS = 400


def timeline(timing: Timing) -> Markup:
    """Return the timeline: a canvas for the script, and a picture of the whole run for readers without scripts."""
    if not timing.events:
        return joined()
    buttons = [("in", "+", "Zoom in"), ("out", "-", "Zoom out"), ("left", "<", "Move left"),
               ("right", ">", "Move right"), ("all", "All", "Show the whole run")]  # fmt: skip
    layers = ranges(timing)
    options = [
        element("option", part_name(timing, tag), value=index) for index, (_, _, tag) in enumerate(layers[:_MAX_LAYERS])
    ]
    return element(
        "section",
        element("h2", "Timeline", element("small", f"{len(timing.events):,} events, predicted")),
        element(
            "div",
            *(element("button", text, type="button", data_zoom=zoom, aria_label=aria) for zoom, text, aria in buttons),
            element("select", element("option", "zoom to a layer", value="-1"), *options, aria_label="Zoom to a layer")
            if options
            else None,
            class_="tools",
        ),
        element("p", HOW, class_="remark", id="timeline-how"),
        element(
            "div",
            element("canvas", tabindex=0, role="img", aria_label=f"Activity of each unit over time: {shares(timing)}",
                    aria_describedby="timeline-how"),
            element("div", class_="tip", hidden="hidden"),
            class_="stage",
        ),
        _key(timing),
        element("p", class_="readout", role="status"),
        element("noscript", still(timing)),
        id="timeline",
    )  # fmt: skip


def _key(timing: Timing) -> Markup:
    items = [element("li", element("i", class_=f"back-{colour_of(kind)}"), kind) for kind in kinds_of(timing)]
    return element("ul", *items, class_="legend")


def still(timing: Timing) -> Markup:
    """Return the whole run as a picture."""
    drawing = overview(timing)
    if drawing is None:
        return joined()
    return element("figure", element("figcaption", drawing.title), svg.inline(drawing))


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
        "ranges": [_span(span, timing) for span in ranges(timing)],
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
