"""The time of a check is bounded, whatever a small file holds."""

from __future__ import annotations

import pytest

from anytpu.chip.assembly import assemble
from anytpu.chip.checking import check, checker
from anytpu.errors import ChipError
from refusals import refusal

PARTS = """
.host_bytes 32768
.input "x", [1, 1, 16384], 0, 0.5
set_configuration PITCH, 1
set_configuration OUT_PITCH, 2
set_configuration OUT_UNITS, 1
set_configuration LOW, -128
set_configuration HIGH, 127
read_host_memory 0, 0, 512
sync activate, read
"""


def test_many_parts_of_rows_are_refused(monkeypatch: pytest.MonkeyPatch):
    text = PARTS + "activate.copy 0, 4000, 512\n" * 9 + "halt"
    check(assemble(text))
    monkeypatch.setattr(checker, "MAX_RANGES", 2**12)
    assert refusal(ChipError, check, assemble(text)) == (
        "Instruction 15 (activate) is where the accesses so far cover more than 4,368 ranges of addresses, the most "
        "that are checked of such a program. Write whole rows (OUT_UNITS = 0), or make two programs."
    )
