"""The list of a program's plots."""

from __future__ import annotations

from anytpu.report.chip.histogram import histogram, layers_with_weights
from anytpu.report.chip.layer_bars import cycles_by_layer, noise_by_layer, weights_by_layer
from anytpu.report.chip.memory_map import memory_map
from anytpu.report.chip.overview import overview
from anytpu.report.chip.record import ChipPage
from anytpu.report.chip.roofline import roofline
from anytpu.report.drawing.shapes import Drawing


def drawings(page: ChipPage) -> list[Drawing]:
    """Return the plots of a program for which there is data."""
    weighted = layers_with_weights(page.network)
    drawn = (
        overview(page.timing),
        cycles_by_layer(page.timing),
        roofline(page.timing),
        memory_map(page.timing, page.image),
        weights_by_layer(page.layers),
        histogram(weighted[0]) if weighted else None,
        noise_by_layer(page.layers),
    )
    return [drawing for drawing in drawn if drawing is not None]
