"""The tests depend on nothing of the machine that runs them: terminal, width, language, home, proxies, time zone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import ROOT

HOSTILE = {
    "NO_COLOR": "1",
    "FORCE_COLOR": "1",
    "COLUMNS": "40",
    "LINES": "5",
    "LANG": "de_DE.ISO-8859-1",
    "LC_ALL": "C",
    "TZ": "Asia/Kathmandu",
    "HOME": "/nowhere",
    "XDG_CACHE_HOME": "/nowhere",
    "KERAS_BACKEND": "torch",
    "KERAS_HOME": "/nowhere",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=3",
    "JAX_ENABLE_X64": "1",
    "TPU_NAME": "somebodys",
    "SLURM_NTASKS": "4",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
}
TESTS = ("tests/report/test_steps.py", "tests/report/test_terminal.py")


def test_only_listed_variables_are_seen(tmp_path: Path):
    assert not HOSTILE.keys() - {"HOME", "LANG", "TZ", "KERAS_BACKEND"} & os.environ.keys()
    assert (os.environ["TERM"], os.environ["TZ"], os.environ["LANG"]) == ("xterm-256color", "UTC", "C.UTF-8")
    assert Path(os.environ["HOME"]) == ROOT / ".pytest_cache" / "home"
    (tmp_path / "new").touch()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o644


@pytest.mark.parametrize("terminal", ["dumb", "xterm", None])
def test_on_any_terminal(terminal: str | None):
    environment = {**os.environ, **HOSTILE, **({} if terminal is None else {"TERM": terminal})}
    if terminal is None:
        del environment["TERM"]
    command = [sys.executable, "-m", "pytest", "-q", *TESTS]
    run = subprocess.run(command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_a_limit_of_the_size_of_files_cuts_off_no_compiled_module():
    """Python writes less than a compiled module under such a limit, without an error: later imports of it fail."""
    limits = "RLIMIT" + "_FSIZE", "ulimit" + " -f"
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        if any(limit in text for limit in limits):
            assert "dont_write_bytecode" in text or "PYTHONDONTWRITEBYTECODE" in text, path
