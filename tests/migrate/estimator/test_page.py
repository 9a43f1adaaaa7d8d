"""The page docs/estimator.md: its program runs, and prints what it says."""

from __future__ import annotations

import re
import subprocess

from forked import python
from source_tree import ROOT

PAGE = (ROOT / "docs/estimator.md").read_text(encoding="utf-8")


def test_the_program_prints_what_the_page_says(tmp_path):
    (program,), (output,) = re.findall(r"```python\n(.*?)```", PAGE, re.S), re.findall(r"```text\n(.*?)```", PAGE, re.S)
    done = subprocess.run([*python(), "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == output, done.stderr
    assert (tmp_path / "digits" / "400").is_dir()
