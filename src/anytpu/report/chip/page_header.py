"""The head of a page: what the program is, the figures that are asked for first, links to the sections."""

from __future__ import annotations

from anytpu import units
from anytpu.report.chip import figures
from anytpu.report.chip.program_lines import facts
from anytpu.report.chip.record import ChipPage
from anytpu.report.web.markup import Markup, element
from anytpu.report.wording import percent


def header(one: ChipPage) -> Markup:
    """Return what the program is."""
    what, _, rest = figures.VIRTUAL.partition(":")
    return element(
        "header",
        element("h1", one.image.name),
        element("p", " ".join(facts(one.image, one.layers)), class_="subtitle"),
        element("p", element("strong", what, ":"), rest, class_="predicted"),
        _cards(one),
    )


def _cards(one: ChipPage) -> Markup:
    """Return the figures that are asked for first."""
    timing = one.timing
    quality = one.summary
    shown = (
        []
        if not timing.cycles
        else [
            ("Predicted latency", units.format_seconds(timing.time_s), f"a batch of {timing.batch:,}"),
            (
                "Predicted rate",
                units.format_rate(timing.examples_per_s, "examples"),
                f"on one of {timing.design.dies} chips",
            ),
            ("Predicted TOPS", f"{timing.ops_per_s / 1e12:.3g}", f"{percent(figures.utilisation(timing))} of the peak"),
        ]
    )
    if quality is not None and quality.quantized_bytes:
        smaller = quality.float_bytes / quality.quantized_bytes
        before = units.format_bytes(quality.float_bytes)
        shown.append(
            (
                "Weights",
                units.format_bytes(quality.quantized_bytes),
                f"{before} as float32, {smaller:.2f} times smaller",
            )
        )
    return element(
        "div",
        *(
            element(
                "div",
                element("div", what, class_="what"),
                element("div", value, class_="name"),
                element("div", why, class_="why"),
                class_="card",
            )
            for what, value, why in shown
        ),
        class_="cards",
    )


def contents(one: ChipPage) -> Markup:
    """Return links to the sections that the page has."""
    places = [
        ("cycles", "Cycles", True),
        ("timeline", "Timeline", bool(one.timing.events)),
        ("layers", "Layers", bool(one.layers)),
        ("roofline", "Roofline", any(part.macs and part.weight_bytes for part in one.timing.parts)),
        ("memory", "Memory", bool(one.image.residents)),
        ("units", "Scalar, vector, matrix", True),
        ("wave", "Systolic wave", one.first_tile is not None),
        ("quantization", "Quantization", one.network is not None),
        ("listing", "Instructions", True),
    ]
    links = [element("a", name, href=f"#{place}") for place, name, is_there in places if is_there]
    return element("nav", *links, aria_label="Sections", class_="contents")
