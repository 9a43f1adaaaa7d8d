"""The sections of a page, in their order, and what its script reads."""

from __future__ import annotations

from typing import Any

from anytpu.report.chip import (
    page_array,
    page_causes,
    page_header,
    page_layers,
    page_listing,
    page_plots,
    page_quality,
    page_timeline,
)
from anytpu.report.chip.record import ChipPage
from anytpu.report.web.markup import Markup


def all_sections(one: ChipPage) -> tuple[list[Markup], dict[str, Any]]:
    """Return the sections of a whole page, and the scene of its script."""
    text = page_listing.listing(one.image)
    scene = {"timeline": page_timeline.scene(one, text.by_instruction), "wave": page_array.wave_scene(one.first_tile)}
    sections = [
        page_header.header(one),
        page_header.contents(one),
        page_causes.causes(one.timing),
        page_timeline.timeline(one.timing),
        page_layers.layer_table(one.layers, one.timing),
        page_plots.roof(one.timing),
        page_plots.memory(one.timing, one.image),
        page_array.units(one),
        page_array.wave(one.first_tile),
        page_quality.quality(one),
        page_listing.section(text),
        page_causes.predicted_by(one.timing),
    ]
    return sections, scene


def still_sections(one: ChipPage) -> list[Markup]:
    """Return the sections of a piece of a page: those that need no script."""
    return [
        page_header.header(one),
        page_causes.causes(one.timing),
        page_timeline.still(one.timing),
        page_layers.layer_table(one.layers, one.timing),
    ]
