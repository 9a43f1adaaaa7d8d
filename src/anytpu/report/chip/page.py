"""A program of the chip as one HTML page: its script and its numbers are in it, and it asks the network for nothing.

Rule: the page's policy lets only that one script run, whatever may stand in a name. What moves is stopped until its
reader starts it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anytpu.report.chip import page_sections
from anytpu.report.chip.record import ChipPage
from anytpu.report.web import document
from anytpu.report.web.markup import Markup, element, joined

_SCRIPTS = ("scene", "timeline", "wave", "units", "listing", "start")


def page(one: ChipPage) -> str:
    """Return a program as the text of an HTML file."""
    sections, scene = page_sections.all_sections(one)
    return document.whole(
        f"{one.image.name} on the first TPU", joined(*sections, _embedded(scene)), _file("chip.css"), _script()
    )


def fragment(one: ChipPage) -> Markup:
    """Return a program as a piece of a page without a script, for a notebook."""
    return document.piece(joined(*page_sections.still_sections(one)), _file("chip.css"))


def write_page(one: ChipPage, path: str | Path) -> Path:
    """Write a program as a page and return its path.

    Raises:
        SettingError: it cannot be written there.
    """
    return document.write(page(one), path)


def _embedded(scene: dict[str, Any]) -> Markup:
    """Return what the script reads. In a script element nothing is escaped but what would end it."""
    text = json.dumps(scene, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return element("script", Markup(text), type="application/json", id="anytpu-chip")


def _script() -> str:
    parts = "".join(_file(f"script/{name}.js") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
