from __future__ import annotations

import runpy
import subprocess
import sys

from anytpu.cli.entry import commands
from source_tree import ROOT

DOCS, SCRIPT = ROOT / "docs/cli.md", str(ROOT / "scripts/cli_page.py")
page = runpy.run_path(SCRIPT)["page"]


def test_the_page_is_current():
    written, current = DOCS.read_text(encoding="utf-8"), page()
    if sys.version_info >= (3, 13):  # argparse aligns the texts to another column: the words are compared.
        written, current = " ".join(written.split()), " ".join(current.split())
    assert written == current, "type: python scripts/cli_page.py > docs/cli.md"


def test_the_script_prints_the_page():
    run = subprocess.run([sys.executable, "-W", "error", SCRIPT], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == (page(), "")


def test_every_command_is_on_it():
    assert [command.name for command in commands() if f"## anytpu {command.name}\n" not in page()] == []
