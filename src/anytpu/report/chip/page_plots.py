"""The roofline and the memory map on a page."""

from __future__ import annotations

from anytpu.chip.image import Image
from anytpu.chip.timing.record import Timing
from anytpu.report.chip import figures
from anytpu.report.chip.causes import CAUSES
from anytpu.report.chip.memory_map import memory_map
from anytpu.report.chip.roofline import roofline
from anytpu.report.drawing import svg
from anytpu.report.web.markup import Markup, element, joined


def roof(timing: Timing) -> Markup:
    """Return the roofline."""
    drawing = roofline(timing)
    if drawing is None:
        return joined()
    legend = [element("li", element("i", class_=f"back-{cause.colour}"), f"mostly {cause.name}") for cause in CAUSES]
    return element(
        "section",
        element("h2", "Roofline", element("small", drawing.summary)),
        element(
            "p",
            "Each disc is a layer, as large as it is long. The axis counts multiply-adds a byte of weights, as the "
            "paper does, and the height counts two operations a multiply-add. Whose weights came while an earlier "
            "layer was at work may lie above the slope.",
            class_="remark",
        ),
        element("figure", svg.either(drawing, roofline(timing, narrow=True))),
        element("ul", *legend, class_="legend"),
        element("p", f"Peak {figures.format_tops(timing.design.peak_ops_per_s)}, predicted rates.", class_="remark"),
        id="roofline",
    )


def memory(timing: Timing, image: Image) -> Markup:
    """Return the memory map of the Unified Buffer."""
    drawing = memory_map(timing, image)
    if drawing is None:
        return joined()
    return element(
        "section",
        element("h2", "Unified Buffer", element("small", drawing.summary)),
        element(
            "p",
            "Each rectangle is a tensor: from when to when it is held, and at which addresses. Point at one for its "
            "name. Rows are padded to 32 bytes.",
            class_="remark",
        ),
        element("figure", svg.either(drawing, memory_map(timing, image, narrow=True))),
        id="memory",
    )
