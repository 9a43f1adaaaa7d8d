"""docs/chip_isa.md is what the definitions say, and its example does what the page says."""

from __future__ import annotations

import re
import sys

import numpy as np

from anytpu.chip.assembly import assemble
from anytpu.chip.assembly.directives import DIRECTIVES, NUMBERS
from anytpu.chip.checking import check
from anytpu.chip.isa.forms import FORMS
from anytpu.chip.isa.registers import Register
from anytpu.chip.machine import run
from source_tree import ROOT

sys.path.append(str(ROOT / "scripts"))

from chip_isa_page import EXAMPLE, page

EXAMPLE_INPUTS = ((1, 2, 3), (4, 5, -6))
EXAMPLE_OUTPUTS = ((12, 9), (24, 0))  # (1*2 + 2*6 + 10) * 0.5 = 12, and so on; the last is -3 before the clip
PAGE = ROOT / "docs" / "chip_isa.md"


def test_the_page_is_made_of_the_definitions():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(), "type: python scripts/chip_isa_page.py > docs/chip_isa.md"


def test_the_page_names_everything():
    text = page()
    assert "<!--" not in text
    names = [f"### {form.mnemonic}\n" for form in FORMS]
    names += [f"| {register.value} | `{register.name}` |" for register in Register]
    names += [f"`{name}`" for name in (*DIRECTIVES, *NUMBERS)]
    assert not [name for name in names if name not in text]


def test_the_example_runs():
    image = assemble(EXAMPLE)
    check(image)
    made = run(image, {"x": np.array(EXAMPLE_INPUTS, np.int8).reshape(2, 1, 1, 3)})
    assert np.array_equal(made["y"].reshape(2, 2), EXAMPLE_OUTPUTS)
    for rows in (EXAMPLE_INPUTS, EXAMPLE_OUTPUTS):
        assert " and ".join(f"({', '.join(map(str, row))})" for row in rows) in page()


def test_the_lines_of_the_page_are_assembly():
    section = page().partition("## Assembly")[2].partition("## An example")[0]
    lines = re.findall(r"^ {4}(.*)$", section, re.MULTILINE)
    assert len(assemble("\n".join(lines)).instructions) == len(lines) == 6
