"""The trial of small loops: does this jaxlib compile them as one kernel, on this machine?

Idea: a jaxlib that cannot do so may abort the process. So a child process compiles and runs a few small loops
(`engine/trial_child.py`). The cache folder keeps the result for this jaxlib, these XLA_FLAGS and this machine.

The protocol has four phases.

1. Cache. A stored result ends the trial: "" for success, else the reason of the failure.
2. Child, before the trial. The child runs plain loops and prints `BEGAN`. A failure up to here is not a result, because
   it may have any cause, such as a wrong XLA_FLAGS.
3. Child, trial. Exit code 0 is success; `FAILED`, SIGABRT and SIGSEGV are failures. Any other exit code, any other
   signal, a timeout and an out-of-memory error are not results.
4. Store. A result is stored; without a result the next process tries again.

Rule: a loop is marked only after a passed trial. A failure is logged once per process.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import json
import logging
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from anytpu import _env
from anytpu.files.json_text import read_json
from anytpu.files.replacing import write_text

TIMEOUT_S = 120.0
"""Timeout of the child in seconds; it takes about two."""

BEGAN = "anytpu: the trial begins"
"""Line that the child prints after the plain loops, before it compiles a marked loop."""

FAILED = 43
"""Exit code of a child whose trial ran and failed. Python and XLA exit with 1, 2 or a signal."""

_CHILD = "anytpu.engine.trial_child"
# The signals of a crash in XLA on a loop that it cannot compile. SIGKILL and SIGTERM come from other processes.
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)
_NO_MEMORY = re.compile("bad_alloc|out of memory|Cannot allocate memory", re.IGNORECASE)
_LOG = logging.getLogger("anytpu")
_IS_SKIPPED = contextvars.ContextVar("anytpu_trial_is_skipped", default=False)


def has_passed() -> bool:
    """Return whether small loops may be marked in this process. The first call on a machine takes about two seconds."""
    return _IS_SKIPPED.get() or _has_passed_trial()


@contextlib.contextmanager
def skip_trial() -> Iterator[None]:
    """Return a context in which small loops are marked without a trial, for the trial itself and for tests of XLA."""
    before = _IS_SKIPPED.set(True)
    try:
        yield
    finally:
        _IS_SKIPPED.reset(before)


def result_file() -> Path:
    """Return the file of the result for this jaxlib, these XLA_FLAGS and this machine."""
    environment = (version("jaxlib"), platform.machine(), platform.node(), str(os.cpu_count()), _env.xla_flags())
    key = hashlib.sha256("\0".join(environment).encode()).hexdigest()[:16]
    return _env.cache_folder() / "small_loops" / f"jaxlib-{version('jaxlib')}-{key}.json"


@functools.cache
def _has_passed_trial() -> bool:
    failure, is_result = _load_result(), True
    if failure is None:
        failure, is_result = _run_child()
        if is_result:
            _store_result(failure)
    if failure and is_result:
        _LOG.warning(
            "Small loops run as XLA compiles them, up to twice as slow as with a jaxlib that anytpu can speed up; the "
            "results are the same. jaxlib %s failed the trial: %s",
            version("jaxlib"),
            failure,
        )
    elif failure:
        _LOG.warning(
            "Small loops run as XLA compiles them in this process, up to twice as slow; the results are the same. The "
            "trial of jaxlib %s has no result, and the next process tries again: %s",
            version("jaxlib"),
            failure,
        )
    return not failure


def _run_child() -> tuple[str, bool]:
    """Run the child. Return the reason of its failure, or "", and whether this is a result that may be stored."""
    command = [sys.executable, "-P", "-m", _CHILD]  # -P: do not import a random.py of the working folder.
    options = {"env": _env.trial_environment(), "stdin": subprocess.DEVNULL, "timeout": TIMEOUT_S}
    try:
        child = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **options)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"its process could not be run ({error})", False
    # 1. The trial passed.
    has_begun = BEGAN in child.stdout.splitlines()
    if has_begun and child.returncode == 0:
        return "", True
    # 2. The child reports a failure of the trial.
    lines = [line for line in child.stderr.splitlines() if line.strip()]
    # XLA logs a fatal error as a line that starts with "F"; a stack trace may follow it.
    fatal = [line for line in lines if line.startswith("F")]
    message = (fatal or lines[-1:] or ["no message"])[0].strip()
    if has_begun and child.returncode == FAILED:
        return message, True
    # 3. The child ended otherwise: a result only if XLA crashed during the trial, and not for lack of memory.
    ending = f"exit code {child.returncode}" if child.returncode >= 0 else signal.Signals(-child.returncode).name
    is_result = has_begun and child.returncode in _CRASHES and not _NO_MEMORY.search(child.stderr)
    return f"its process ended with {ending} ({message[:300]})", is_result


def _load_result() -> str | None:
    """Return the stored result: the reason of the failure, or "" for success; None without a valid file."""
    try:
        result = read_json(result_file().read_bytes())
    except (OSError, ValueError):
        return None
    failure = result.get("failed") if isinstance(result, dict) else None
    return failure if isinstance(failure, str) else None


def _store_result(failure: str) -> None:
    """Store a result atomically; if the folder is not writable, the next process tries again."""
    path = result_file()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"failed": failure}))
