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
    parts = (
        # 1. For a reader who meets the chip for the first time: its parts, numbers, instructions, and a product.
        ("chip", "The chip", diagram.chip(record)),
        ("quantization", "Real numbers as integers", integers.integers(record)),
        ("listing", "Instructions", listing.listing(record.image, texts)),
        ("units", "Scalar, vector, matrix", multiplication.units(record)),
        ("wave", "Systolic wave", multiplication.wave(record, integers.shown_layer(record))),
        # 2. For an engineer: where the time goes.
        ("cycles", "Cycles", sections.causes(record.timing)),
        ("timeline", "Timeline", sections.timeline(record.timing)),
        ("layers", "Layers", sections.layer_table(record.layers, record.timing)),
        ("roofline", "Roofline", sections.roof(record.timing)),
        ("memory", "Memory", sections.memory(record)),
    )
    links = [element("a", name, href=f"#{anchor}") for anchor, name, part in parts if part]
    content = joined(
        _header(record),
        element("nav", *links, aria_label="Sections", class_="contents"),
        *(part for *_, part in parts),
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
    timing, sizes = page.timing, integers.weight_sizes(page.network)
    shown = []
    if timing.cycles:
        rate = units.format_rate(timing.examples_per_s, "examples")
        share = percent(figures.utilisation(timing))
        shown = [
            ("Predicted latency", units.format_seconds(timing.time_s), f"a batch of {timing.batch:,}"),
            ("Predicted rate", rate, f"on one of {timing.design.dies} chips"),
            ("Predicted TOPS", f"{timing.ops_per_s / 1e12:.3g}", f"{share} of the peak"),
        ]
    if sizes is not None:
        before, after = map(units.format_bytes, sizes)
        why = f"{before} as float32, {sizes[0] / sizes[1]:.2f} times smaller"
        shown.append(("Weights of the chip", after, why))
    return shown


def _embedded(scene: dict[str, Any]) -> Markup:
    """Return the script's data. A script element has no escapes, so "<" is written as a JSON escape."""
    text = json.dumps(scene, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return element("script", Markup(text), type="application/json", id="anytpu-chip")


def _script() -> str:
    parts = "".join(_file(f"script/{name}.js") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
