"""A chip program as one HTML page that contains its script and data, without network requests.

Rule: the page's content security policy allows only its own script, so text in a user's names cannot run. Animations
are paused until the reader starts them.
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


def page(record: ChipPage) -> str:
    """Return a program as the text of an HTML file."""
    sections, scene = page_sections.all_sections(record)
    return document.whole(
        f"{record.image.name} on the first TPU", joined(*sections, _embedded(scene)), _file("chip.css"), _script()
    )


def fragment(record: ChipPage) -> Markup:
    """Return a program as an HTML fragment without a script, for a notebook."""
    return document.piece(joined(*page_sections.still_sections(record)), _file("chip.css"))


def write_page(record: ChipPage, path: str | Path) -> Path:
    """Write a program as a page and return its path.

    Raises:
        SettingError: the file cannot be written.
    """
    return document.write(page(record), path)


def _embedded(scene: dict[str, Any]) -> Markup:
    """Return the script's data. A script element has no escapes, so "<" is written as a JSON escape."""
    text = json.dumps(scene, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return element("script", Markup(text), type="application/json", id="anytpu-chip")


def _script() -> str:
    parts = "".join(_file(f"script/{name}.js") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
