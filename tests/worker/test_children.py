"""The child of a worker: its end."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from anytpu._env import package_folder

STARTS_A_PROCESS = """\
import subprocess, sys
from pathlib import Path
if "anytpu.worker.child" in sys.orig_argv:
    with Path(__file__).with_name("alive").open("wb") as pipe:
        subprocess.Popen(["sleep", "600"], stdout=pipe)
"""
KILLS_A_CHILD = """\
from anytpu.worker.children import ChildOptions, WorkerChild
child = WorkerChild(ChildOptions("virtual", 2))
child.kill()
child.wait_for_end()
"""


def test_a_process_that_the_child_started_is_killed_with_it(tmp_path: Path):
    """On a GPU, XLA starts ptxas. Here Python starts a process that keeps a pipe open."""
    (tmp_path / "sitecustomize.py").write_text(STARTS_A_PROCESS)
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(package_folder())])}
        subprocess.run([sys.executable, "-c", KILLS_A_CHILD], env=variables, check=True)
        assert select.select([reader], [], [], 10.0) == ([reader], [], [])
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
