"""The notebooks have the cells of their Markdown pages, ran without an error, and run again."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from source_tree import ROOT

PAGES = sorted((ROOT / "notebooks").glob("*.md"))


def cells(page: Path) -> list[dict[str, Any]]:
    found = json.loads(page.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_is_that_of_its_page(page: Path):
    written = re.findall(r"^```\{code-cell\}\n(.*?)\n```$", page.read_text(encoding="utf-8"), re.M | re.S)
    assert ["".join(cell["source"]) for cell in cells(page)] == written, "type: scripts/notebooks"
    assert "%pip install" in written[0]
    kinds = {kind for cell in cells(page) for output in cell["outputs"] for kind in output.get("data", {})}
    assert kinds & {"image/png", "text/html"}, "a notebook shows a picture or a table"


@pytest.mark.battery
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_runs_top_to_bottom(page: Path, tmp_path: Path):
    pytest.importorskip("jupytext")
    pytest.importorskip("nbclient")
    copy = tmp_path / page.name
    copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    runpy.run_path(str(ROOT / "scripts/notebooks"))["run"](copy)  # A cell that fails raises.
    assert len(cells(copy)) == len(cells(page))
