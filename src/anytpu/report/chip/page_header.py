"""The head of a page: description of the program, main figures, links to the sections."""

from __future__ import annotations

from anytpu import units
from anytpu.report.chip import figures
from anytpu.report.chip.program_lines import facts
from anytpu.report.chip.record import ChipPage
from anytpu.report.web.markup import Markup, element
from anytpu.report.wording import percent


def header(page: ChipPage) -> Markup:
    """Return the description of the program and its main figures."""
    title, _, rest = figures.VIRTUAL.partition(":")
    return element(
        "header",
        element("h1", page.image.name),
        element("p", " ".join(facts(page.image, page.layers)), class_="subtitle"),
        element("p", element("strong", title, ":"), rest, class_="predicted"),
        _cards(page),
    )


def _cards(page: ChipPage) -> Markup:
    """Return the main figures."""
    timing = page.timing
    quality = page.summary
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
                element("div", title, class_="what"),
                element("div", value, class_="name"),
                element("div", why, class_="why"),
                class_="card",
            )
            for title, value, why in shown
        ),
        class_="cards",
    )


def contents(page: ChipPage) -> Markup:
    """Return links to the sections of the page."""
    sections = [
        ("cycles", "Cycles", True),
        ("timeline", "Timeline", bool(page.timing.events)),
        ("layers", "Layers", bool(page.layers)),
        ("roofline", "Roofline", any(part.macs and part.weight_bytes for part in page.timing.parts)),
        ("memory", "Memory", bool(page.image.residents)),
        ("units", "Scalar, vector, matrix", True),
        ("wave", "Systolic wave", page.first_tile is not None),
        ("quantization", "Quantization", page.network is not None),
        ("listing", "Instructions", True),
    ]
    links = [element("a", name, href=f"#{anchor}") for anchor, name, is_present in sections if is_present]
    return element("nav", *links, aria_label="Sections", class_="contents")
