"""The page docs/start.md: its blocks run as one program, and print what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from forked import python
from page_programs import check_page
from source_tree import ROOT


def test_the_program_prints_what_the_page_says(tmp_path: Path):
    check_page("start", 3, tmp_path)


def test_the_program_started_again_trains_nothing_anew(tmp_path: Path):
    page = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    block = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)[0]
    count = "keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch))"
    program = block.replace('checkpoint_dir="run1")', f'checkpoint_dir="run1", callbacks=[{count}])')
    runs = [subprocess.run([*python(), "-c", program], cwd=tmp_path, capture_output=True, text=True) for _ in range(2)]
    first, second = (run.stdout.splitlines() for run in runs)
    assert first[:-1] == [str(epoch) for epoch in range(20)], runs[0].stderr
    assert second == first[-1:], runs[1].stderr
