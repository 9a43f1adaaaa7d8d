from __future__ import annotations

import runpy
import subprocess
import sys

from anytpu.migrate.replaced.table import replacements
from source_tree import ROOT

DOCS, SCRIPT = ROOT / "docs/migrate.md", str(ROOT / "scripts/migrate_page.py")
page = runpy.run_path(SCRIPT)["page"]


def test_the_page_is_current():
    assert DOCS.read_text(encoding="utf-8") == page(), "type: python scripts/migrate_page.py > docs/migrate.md"


def test_the_script_prints_the_page():
    run = subprocess.run([sys.executable, "-W", "error", SCRIPT], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == (page(), "")


def test_every_row_is_on_it():
    text = page()
    rows = [row for rows in replacements().values() for row in rows if row.how != "same"]
    assert [row.old for row in rows if f"-{row.old.splitlines()[0]}\n" not in text] == []
    assert [row.new for row in rows if row.new and f"+{row.new.splitlines()[-1]}\n" not in text] == []
