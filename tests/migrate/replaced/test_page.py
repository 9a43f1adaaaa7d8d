from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from anytpu.migrate.replaced.page import page
from anytpu.migrate.replaced.table import replacements

DOCS = Path(__file__).parents[3] / "docs" / "migrate.md"


def test_the_page_is_current():
    assert DOCS.read_text(encoding="utf-8") == page(), "type: python -m anytpu.migrate.replaced.page > docs/migrate.md"


def test_the_module_prints_the_page():
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "anytpu.migrate.replaced.page"], capture_output=True, text=True
    )
    assert (run.stdout, run.stderr) == (page(), "")


def test_every_row_is_on_it():
    text = page()
    rows = [row for rows in replacements().values() for row in rows if row.how != "same"]
    assert [row.old for row in rows if f"-{row.old.splitlines()[0]}\n" not in text] == []
    assert [row.new for row in rows if row.new and f"+{row.new.splitlines()[-1]}\n" not in text] == []
