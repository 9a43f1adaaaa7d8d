"""Run the Python blocks of a page of docs/ as one program, in a new process."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from forked import python
from source_tree import ROOT


def check_page(name: str, blocks: int, folder: Path) -> None:
    """Check that the Python blocks of a page, run as one program, print the text blocks of the page.

    Args:
        name: name of the page.
        blocks: number of its Python blocks, and of its text blocks.
        folder: the folder in which the program runs.
    """
    page = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    programs, outputs = (re.findall(rf"^```{kind}\n(.*?)^```$", page, re.M | re.S) for kind in ("python", "text"))
    assert len(programs) == len(outputs) == blocks
    run = subprocess.run([*python(), "-c", "\n".join(programs)], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "".join(outputs), run.stderr
