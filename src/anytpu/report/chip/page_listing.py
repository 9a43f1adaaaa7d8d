"""The section of a page on instructions: the text of the first ones, with a search field."""

from __future__ import annotations

import dataclasses

from anytpu.chip.assembly.instruction_text import write_instruction
from anytpu.chip.image import Image
from anytpu.report.web.markup import Markup, element, joined

_MAX_INSTRUCTIONS = 6_000
"""Maximum number of instructions whose text is on a page."""


@dataclasses.dataclass(frozen=True)
class Listing:
    """The text of a program.

    Attributes:
        lines: text of the first instructions, each with its index.
        by_instruction: text of each of these by its index.
        total: number of instructions in the whole program.
    """

    lines: tuple[str, ...]
    by_instruction: dict[int, str]
    total: int


def listing(image: Image) -> Listing:
    """Return the text of the first instructions of a program."""
    texts = {
        index: write_instruction(instruction)
        for index, instruction in enumerate(image.instructions[:_MAX_INSTRUCTIONS])
    }
    lines = tuple(f"{index:>6}  {text}" for index, text in texts.items())
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
