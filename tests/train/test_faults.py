"""A fixed sample of `scripts/faults`, which kills runs at random moments; the whole list takes half an hour."""

from __future__ import annotations

import subprocess
import sys

from source_tree import ROOT


def test_a_loop_is_killed_and_continues():
    sample = ["--only", "jax", "--run", "0", "--save", "2", "--resume", "0", "--seed", "5"]
    done = subprocess.run([sys.executable, ROOT / "scripts" / "faults", *sample], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()[1:]
    assert sum(line.count(" in a save") for line in lines) >= 1
    assert all(line.endswith(": equal") for line in lines)
