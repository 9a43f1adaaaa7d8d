"""The examples in the docstrings of reports and pages run, also those of the rooms."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import anytpu

SOURCE = Path(anytpu.__file__).parent
MODULES = sorted(
    path.relative_to(SOURCE.parent)
    for folder in ("report", "chip/page", "planning/page")
    for path in (SOURCE / folder).rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_examples_in_the_docstrings(path: Path):
    outcome = doctest.testmod(importlib.import_module(".".join(path.with_suffix("").parts)))
    assert outcome.attempted > 0
    assert outcome.failed == 0
