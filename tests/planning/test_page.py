"""The page docs/plan.md: its blocks run as one program, and print what it says."""

from __future__ import annotations

import re
from pathlib import Path

from page_programs import check_page
from source_tree import ROOT


def test_the_program_prints_what_the_page_says(tmp_path: Path):
    check_page("plan", 9, tmp_path)


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "docs/plan.md").read_text(encoding="utf-8"))
    assert links and all((ROOT / "docs" / link).exists() for link in links)
