"""The page docs/plan.md: its blocks run as one program, and print what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from forked import python
from source_tree import ROOT

PAGE = (ROOT / "docs/plan.md").read_text(encoding="utf-8")


def test_the_program_prints_what_the_page_says(tmp_path: Path):
    programs, outputs = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) for language in ("python", "text"))
    assert len(programs) == len(outputs) == 9
    done = subprocess.run([*python(), "-c", "\n".join(programs)], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "".join(outputs), done.stderr


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)", PAGE)
    assert links and all((ROOT / "docs" / link).exists() for link in links)
