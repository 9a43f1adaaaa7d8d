"""Every plot of a program."""

from __future__ import annotations

from anytpu.report.chip.histogram import histogram, layers_with_weights
from anytpu.report.chip.layer_bars import cycles_by_layer, noise_by_layer, weights_by_layer
from anytpu.report.chip.memory_map import memory_map
from anytpu.report.chip.overview import overview
from anytpu.report.chip.record import ChipPage
from anytpu.report.chip.roofline import roofline
from anytpu.report.drawing.shapes import Drawing


def drawings(page: ChipPage) -> list[Drawing]:
    """Return the plots of a program, as far as there are numbers for them."""
    weighty = layers_with_weights(page.network)
    drawn = (
        overview(page.timing),
        cycles_by_layer(page.timing),
        roofline(page.timing),
        memory_map(page.timing, page.image),
        weights_by_layer(page.layers),
        histogram(weighty[0]) if weighty else None,
        noise_by_layer(page.layers),
    )
    return [drawing for drawing in drawn if drawing is not None]
