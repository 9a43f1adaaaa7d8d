"""A chip program as one HTML page that contains its script and data, without network requests.

Idea: this file has the frame of the page: its head, the order of its sections, and the script. Animations are paused
until the reader starts them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anytpu import units
from anytpu.chip.assembly.instruction_text import write_instruction
from anytpu.chip.page import diagram, figures, integers, listing, multiplication, sections
from anytpu.chip.page.record import ChipPage
from anytpu.chip.page.text import facts
from anytpu.report import html, output
from anytpu.report.html import Markup, cards, element, joined, predicted
from anytpu.report.wording import percent

_SCRIPTS = ("scene", "wave", "units", "listing", "start")
_MAX_INSTRUCTIONS = 6_000
"""Maximum number of instructions whose text is on a page."""


def page(record: ChipPage) -> str:
    """Return a program as the text of an HTML file."""
    instructions = record.image.instructions[:_MAX_INSTRUCTIONS]
    texts = {index: write_instruction(instruction) for index, instruction in enumerate(instructions)}
    scene = {"wave": multiplication.wave_scene(record.first_tile)}
    content = joined(
        _header(record),
        _contents(record),
        # 1. For a reader who meets the chip for the first time: its parts, numbers, instructions, and a product.
        diagram.chip(record),
        integers.integers(record),
        listing.listing(record.image, texts),
        multiplication.units(record),
        multiplication.wave(record, integers.shown_layer(record)),
        # 2. For an engineer: where the time goes.
        sections.causes(record.timing),
        sections.timeline(record.timing),
        sections.layer_table(record.layers, record.timing),
        sections.roof(record.timing),
        sections.memory(record),
        sections.predicted_by(record.timing),
        _embedded(scene),
    )
    return html.whole(f"{record.image.name} on the first TPU", content, _file("chip.css"), _script())


def fragment(record: ChipPage) -> Markup:
    """Return the sections of a program that need no script as an HTML fragment, for a notebook."""
    content = joined(
        _header(record),
        sections.causes(record.timing),
        sections.still(record.timing),
        sections.layer_table(record.layers, record.timing),
    )
    return html.piece(content, _file("chip.css"))


def write_page(record: ChipPage, path: str | Path) -> Path:
    """Write a program as a page and return its path.

    Raises:
        SettingError: the file cannot be written.
    """
    return output.write(page(record), path, "the page")


def _header(page: ChipPage) -> Markup:
    """Return the description of the program and its main figures."""
    title, _, rest = figures.VIRTUAL.partition(":")
    return element(
        "header",
        element("h1", page.image.name),
        element("p", " ".join(facts(page.image, page.layers)), class_="subtitle"),
        predicted(f"{title}:", rest),
        cards(_main_figures(page)),
    )


def _main_figures(page: ChipPage) -> list[tuple[str, str, str]]:
    """Return (subject, figure, explanation) of each main figure that is known."""
    timing, quality = page.timing, page.summary
    shown = []
    if timing.cycles:
        rate = units.format_rate(timing.examples_per_s, "examples")
        share = percent(figures.utilisation(timing))
        shown = [
            ("Predicted latency", units.format_seconds(timing.time_s), f"a batch of {timing.batch:,}"),
            ("Predicted rate", rate, f"on one of {timing.design.dies} chips"),
            ("Predicted TOPS", f"{timing.ops_per_s / 1e12:.3g}", f"{share} of the peak"),
        ]
    if quality is not None and quality.quantized_bytes:
        smaller = quality.float_bytes / quality.quantized_bytes
        why = f"{units.format_bytes(quality.float_bytes)} as float32, {smaller:.2f} times smaller"
        shown.append(("Weights", units.format_bytes(quality.quantized_bytes), why))
    return shown


def _contents(page: ChipPage) -> Markup:
    """Return links to the sections of the page."""
    anchors = [
        ("chip", "The chip", True),
        ("quantization", "Real numbers as integers", page.network is not None),
        ("listing", "Instructions", True),
        ("units", "Scalar, vector, matrix", True),
        ("wave", "Systolic wave", page.first_tile is not None),
        ("cycles", "Cycles", True),
        ("timeline", "Timeline", bool(page.timing.events)),
        ("layers", "Layers", bool(page.layers)),
        ("roofline", "Roofline", any(part.macs and part.weight_bytes for part in page.timing.parts)),
        ("memory", "Memory", bool(page.image.residents)),
    ]
    links = [element("a", name, href=f"#{anchor}") for anchor, name, is_present in anchors if is_present]
    return element("nav", *links, aria_label="Sections", class_="contents")


def _embedded(scene: dict[str, Any]) -> Markup:
    """Return the script's data. A script element has no escapes, so "<" is written as a JSON escape."""
    text = json.dumps(scene, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return element("script", Markup(text), type="application/json", id="anytpu-chip")


def _script() -> str:
    parts = "".join(_file(f"script/{name}.js") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
