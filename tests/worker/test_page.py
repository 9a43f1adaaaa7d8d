"""docs/worker.md is true: its program prints what the block after it says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from source_tree import ROOT

PAGE = (ROOT / "docs" / "worker.md").read_text(encoding="utf-8")
PROGRAM = re.search(r"^```python\n(# loopback.py\n.*?)^```$\n+^```text\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_program_prints_what_the_page_says(tmp_path: Path):
    assert PROGRAM is not None
    code, output = PROGRAM.groups()
    command = [sys.executable, "-W", "error", "-c", code]
    # Files: a worker that the program leaves behind would hold a pipe open.
    with (tmp_path / "out").open("w") as out, (tmp_path / "errors").open("w") as errors:
        run = subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True)
        try:
            status = run.wait(100)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    assert status == 0, (tmp_path / "errors").read_text()
    assert (tmp_path / "out").read_text() == output
