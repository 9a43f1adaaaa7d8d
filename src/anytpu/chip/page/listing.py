"""The section of a page on instructions: what each of them does, how often it occurs, and the text of the program."""

from __future__ import annotations

import collections

from anytpu.chip.image.image import Image
from anytpu.chip.isa import instructions
from anytpu.chip.isa.forms import BY_RECORD, FORMS, Form
from anytpu.report.html import Markup, element, remark, section, table

_WORK = (
    instructions.ReadHostMemory,
    instructions.ReadWeights,
    instructions.MatrixMultiply,
    instructions.Convolve,
    instructions.Activate,
    instructions.WriteHostMemory,
)
"""The instructions that the paper names, in the order in which a layer needs them."""


def listing(image: Image, texts: dict[int, str]) -> Markup:
    """Return the instructions.

    Args:
        image: the program.
        texts: the text of its first instructions, by index.
    """
    total = len(image.instructions)
    is_cut = total > len(texts)
    lines = "\n".join(f"{index:>6}  {text}" for index, text in texts.items())
    search = element("input", type="search", placeholder="activate, sync, a number")
    count = element("span", f"{len(texts):,} lines", class_="count", role="status")
    return section(
        "listing",
        "Instructions",
        f"the first {len(texts):,} of {total:,}" if is_cut else f"all {total:,}",
        remark(
            "Five instructions do the work: one reads the host's memory, one reads weights, one multiplies (or "
            "convolves), one activates, one writes to the host's memory. The others steer them."
        ),
        _meanings(image),
        element("div", element("label", "Search ", search), count, class_="tools"),
        element("pre", lines, tabindex=0, role="region", aria_label="Instructions"),
        remark("program.disassemble() returns all of them.") if is_cut else None,
    )


def _meanings(image: Image) -> Markup:
    """Return each instruction of the program with its meaning, those that do the work first."""
    counts = collections.Counter(type(instruction) for instruction in image.instructions)
    steering = [form for form in FORMS if form.record not in _WORK and counts[form.record]]
    forms: list[Form] = [*(BY_RECORD[record] for record in _WORK), *steering]
    rows = [(form.mnemonic, f"{counts[form.record]:,}", form.text) for form in forms]
    return table(("instruction", "how often", "meaning"), rows, "counters", numbers=(1,))
