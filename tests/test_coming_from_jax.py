"""docs/coming_from_jax.md is true: each program prints what the block after it says."""

from __future__ import annotations

import re
import subprocess

import pytest

from forked import python
from source_tree import ROOT

PAGE = (ROOT / "docs" / "coming_from_jax.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^## ([^\n]+)$(?:(?!^## ).)*?^```python\n(.*?)^```$\n+^```text\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_programs_are_found():
    assert [name for name, _, _ in PROGRAMS] == ["optax", "Flax NNX", "Equinox"]
    assert PAGE.count("```python") == 3


@pytest.mark.parametrize(("name", "code", "output"), PROGRAMS, ids=[name for name, _, _ in PROGRAMS])
def test_a_program_prints_what_the_page_says(name, code, output, tmp_path):
    # Flax warns at import of what it deprecates itself.
    command = [*python(), "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == output
