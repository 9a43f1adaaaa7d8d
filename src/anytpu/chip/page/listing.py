"""The section of a page on instructions: what each of them does, how often it occurs, and the text of the program."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

from anytpu.chip.image.image import Image
from anytpu.chip.isa import instructions
from anytpu.chip.isa.forms import BY_RECORD, FORMS, Form
from anytpu.chip.page.sections import fold
from anytpu.report.html import Markup, element, joined, remark, section, table
from anytpu.report.wording import plural

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
    total, counts = len(image.instructions), collections.Counter(map(type, image.instructions))
    is_cut = total > len(texts)
    lines = "\n".join(f"{index:>6}  {text}" for index, text in texts.items())
    search = element("input", type="search", placeholder="activate, sync, a number")
    count = element("span", f"{len(texts):,} lines", class_="count", role="status")
    return section(
        "listing",
        "Instructions",
        f"the first {len(texts):,} of {total:,}" if is_cut else f"all {total:,}",
        remark("Five instructions do the work (a product has two forms). The others steer them."),
        _meanings([BY_RECORD[record] for record in _WORK], counts),
        fold(
            "All instructions of this program",
            _meanings([form for form in FORMS if form.record not in _WORK and counts[form.record]], counts),
            element("div", element("label", "Search ", search), count, class_="tools"),
            element("pre", lines, tabindex=0, role="region", aria_label="Instructions"),
            remark("program.disassemble() returns all of them.") if is_cut else None,
        ),
    )


def _meanings(forms: Sequence[Form], counts: Mapping[type, int]) -> Markup:
    """Return instructions with their number in the program and their meaning."""
    rows = [
        (joined(element("b", form.mnemonic), element("small", plural(counts[form.record], "time"))), form.text)
        for form in forms
    ]
    return table(("instruction", "meaning"), rows, "counters")
