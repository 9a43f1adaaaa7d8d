"""`import anytpu` and the help of the command line load neither JAX nor Keras."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = "; import sys; print(sorted({'jax', 'jaxlib', 'keras', 'tensorflow', 'torch'} & set(sys.modules)))"
HELP = """
import runpy, sys
sys.argv = ["anytpu", "--help"]
try:
    runpy.run_module("anytpu", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
"""


def last_line(program: str) -> str:
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()[-1]


@pytest.mark.parametrize("module", ["anytpu", "anytpu.errors", "anytpu.cli"])
def test_import_is_light(module: str):
    assert last_line(f"import {module}{LOADED}") == "[]"


def test_dir_is_light():
    assert last_line(f"import anytpu; dir(anytpu), anytpu.__all__{LOADED}") == "[]"


def test_help_is_light():
    assert last_line(f"{HELP}\n{LOADED.lstrip('; ')}") == "[]"


def test_help_prints_the_commands():
    run = subprocess.run([sys.executable, "-m", "anytpu", "--help"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("usage: anytpu")
    assert [command for command in ("devices", "env", "demo", "doctor") if command not in run.stdout] == []
