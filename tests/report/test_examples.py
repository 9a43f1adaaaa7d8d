from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import anytpu.report

FOLDER = Path(anytpu.report.__file__).parent
MODULES = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*.py") if ">>>" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_examples_in_the_docstrings(path: Path):
    name = ".".join(path.with_suffix("").parts)
    outcome = doctest.testmod(importlib.import_module(f"anytpu.report.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
