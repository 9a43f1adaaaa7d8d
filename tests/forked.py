"""`python()`: the begin of a command that runs a program of a test in a process with Keras and JAX imported.

Rule: not for tests of imports, of options of Python except -W and -P, or of a signal that no process can pass on, such
as SIGSTOP.
"""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import jax

HERE = Path(__file__).parent


@functools.cache
def _address() -> str:
    """Start the server of this test process, and return its address."""
    address = os.path.join(tempfile.mkdtemp(prefix="anytpu-tests-"), "server")
    programs = jax.config.values["jax_compilation_cache_dir"] or ""
    server = subprocess.Popen(
        [sys.executable, HERE / "fork_server.py", address, programs], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    atexit.register(server.communicate)  # Closes the pipe, which ends the server.
    return address


def python() -> list[str]:
    """Return the words that stand for `python` in a command."""
    return [sys.executable, "-I", "-S", *script()]


def script() -> list[str]:
    """Return the words before a program of a command that runs Python itself, such as `anytpu launch`."""
    return [str(HERE / "fork_client.py"), _address()]


def executable(folder: Path) -> Path:
    """Return a file that stands for the executable of Python, for programs that start `sys.executable`."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {shlex.join(python())} "$@"\n')
    path.chmod(0o755)
    return path


def launch(processes: int, cores: int) -> list[str]:
    """Return the words of `anytpu launch` before a program, which several processes run."""
    return [*python(), "-m", "anytpu", "launch", "-n", str(processes), "--cores", str(cores), *script()]
