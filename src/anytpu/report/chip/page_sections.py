"""The sections of a page, in order, and the data of its script."""

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


def all_sections(page: ChipPage) -> tuple[list[Markup], dict[str, Any]]:
    """Return the sections of a whole page, and the data of its script."""
    text = page_listing.listing(page.image)
    scene = {"timeline": page_timeline.scene(page, text.by_instruction), "wave": page_array.wave_scene(page.first_tile)}
    sections = [
        page_header.header(page),
        page_header.contents(page),
        page_causes.causes(page.timing),
        page_timeline.timeline(page.timing),
        page_layers.layer_table(page.layers, page.timing),
        page_plots.roof(page.timing),
        page_plots.memory(page.timing, page.image),
        page_array.units(page),
        page_array.wave(page.first_tile),
        page_quality.quality(page),
        page_listing.section(text),
        page_causes.predicted_by(page.timing),
    ]
    return sections, scene


def still_sections(page: ChipPage) -> list[Markup]:
    """Return the sections of a fragment: those that need no script."""
    return [
        page_header.header(page),
        page_causes.causes(page.timing),
        page_timeline.still(page.timing),
        page_layers.layer_table(page.layers, page.timing),
    ]
