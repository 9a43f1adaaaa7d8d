"""The instructions on a page: the first ones as text, which can be searched."""

from __future__ import annotations

import dataclasses

from anytpu.chip.assembly.instruction_text import write_instruction
from anytpu.chip.image import Image
from anytpu.report.web.markup import Markup, element, joined

_MOST = 6_000
"""Instructions whose text a page carries."""


@dataclasses.dataclass(frozen=True)
class Listing:
    """The text of a program.

    Attributes:
        lines: of the first instructions, each with its number.
        by_instruction: the text of each of these by its number.
        total: instructions of the whole program.
    """

    lines: tuple[str, ...]
    by_instruction: dict[int, str]
    total: int


def listing(image: Image) -> Listing:
    """Return the text of the first instructions of a program."""
    texts = {number: write_instruction(one) for number, one in enumerate(image.instructions[:_MOST])}
    lines = tuple(f"{number:>6}  {text}" for number, text in texts.items())
    return Listing(lines, texts, len(image.instructions))


def section(text: Listing) -> Markup:
    """Return the listing with a field to search it."""
    left = text.total - len(text.by_instruction)
    more = f"the first {len(text.by_instruction):,} of {text.total:,}" if left else f"all {text.total:,}"
    return element(
        "section",
        element("h2", "Instructions", element("small", more)),
        element(
            "div",
            element("label", "Search ", element("input", type="search", placeholder="activate, sync, a number")),
            element("span", f"{len(text.lines):,} lines", class_="count", role="status"),
            class_="tools",
        ),
        element("pre", "\n".join(text.lines), tabindex=0, role="region", aria_label="Instructions"),
        joined() if not left else element("p", "program.disassemble() returns all of them.", class_="remark"),
        id="listing",
    )
