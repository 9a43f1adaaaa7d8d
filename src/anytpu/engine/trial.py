"""The trial of small loops: does this jaxlib compile them as one kernel, on this machine?

Idea: where it does not, XLA may end the process. So a child process compiles and runs some of them once
(`engine/trial_child.py`), and the cache folder keeps its answer for this jaxlib, these XLA_FLAGS and this machine.

Rule: without a passed trial no loop is marked, and the log says so once. If the child cannot start, or times out, no
result is stored. The next process tries again. So it is where the child ends before the trial begins, or is killed.
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
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from anytpu import _env

TIMEOUT_S = 120.0
"""Seconds after which the child is ended; it takes about two."""

BEGAN = "anytpu: the trial begins"
"""The line that the child prints when plain loops have run, before it compiles one as one kernel."""

FAILED = 43
"""The exit code of a child whose trial ran and did not pass. Python and XLA end with 1, 2 or a signal."""

_CHILD = "anytpu.engine.trial_child"
# XLA ends a process so on a loop that it cannot compile. SIGKILL and SIGTERM come from elsewhere.
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)
_NO_MEMORY = re.compile("bad_alloc|out of memory|Cannot allocate memory", re.IGNORECASE)
_LOG = logging.getLogger("anytpu")
_IS_TAKEN_AS_PASSED = contextvars.ContextVar("anytpu_trial_is_taken_as_passed", default=False)


def has_passed() -> bool:
    """Tell whether small loops may be marked in this process. The first call on a machine takes about two seconds."""
    return _IS_TAKEN_AS_PASSED.get() or _passed()


@contextlib.contextmanager
def taken_as_passed() -> Iterator[None]:
    """Return a context in which small loops are marked without a trial: the trial itself, and tests of XLA."""
    before = _IS_TAKEN_AS_PASSED.set(True)
    try:
        yield
    finally:
        _IS_TAKEN_AS_PASSED.reset(before)


def answer_file() -> Path:
    """Return the file that keeps the answer for this jaxlib, these XLA_FLAGS and this machine."""
    asked = (version("jaxlib"), platform.machine(), platform.node(), str(os.cpu_count()), _env.xla_flags())
    key = hashlib.sha256("\0".join(asked).encode()).hexdigest()[:16]
    return _env.cache_folder() / "small_loops" / f"jaxlib-{version('jaxlib')}-{key}.json"


@functools.cache
def _passed() -> bool:
    answer, is_sure = _kept(), True
    if answer is None:
        answer, is_sure = _tried()
        if is_sure:
            _keep(answer)
    if answer and is_sure:
        _LOG.warning(
            "Small loops run as XLA compiles them, up to twice as slow as with a jaxlib that anytpu can speed up; the "
            "numbers are the same. jaxlib %s did not pass the trial: %s",
            version("jaxlib"),
            answer,
        )
    elif answer:
        _LOG.warning(
            "Small loops run as XLA compiles them in this process, up to twice as slow; the numbers are the same. The "
            "trial of jaxlib %s has no result, and the next process tries again: %s",
            version("jaxlib"),
            answer,
        )
    return not answer


def _tried() -> tuple[str, bool]:
    """Run the child. Return the reason why it did not pass, or "", and whether this is the result of the trial."""
    command = [sys.executable, "-P", "-m", _CHILD]  # -P: a random.py of the working folder is not imported.
    given = {"env": _env.trial_environment(), "stdin": subprocess.DEVNULL, "timeout": TIMEOUT_S}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **given)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"its process could not be run ({error})", False
    has_begun = BEGAN in done.stdout.splitlines()
    if has_begun and done.returncode == 0:
        return "", True
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("F")]
    said = (fatal or lines[-1:] or ["it said nothing"])[0].strip()
    if has_begun and done.returncode == FAILED:
        return said, True
    ended = f"exit code {done.returncode}" if done.returncode >= 0 else signal.Signals(-done.returncode).name
    is_sure = has_begun and done.returncode in _CRASHES and not _NO_MEMORY.search(done.stderr)
    return f"its process ended with {ended} ({said[:300]})", is_sure


def _kept() -> str | None:
    """Return the answer of an earlier trial: the reason why it did not pass, or ""; None where there is none."""
    try:
        answer = json.loads(answer_file().read_text())
    except (OSError, ValueError):
        return None
    failed = answer.get("failed") if isinstance(answer, dict) else None
    return failed if isinstance(failed, str) else None


def _keep(failed: str) -> None:
    """Keep an answer, whole; where nothing can be written, the next process tries again."""
    path = answer_file()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with open(number, "w") as file:
            json.dump({"failed": failed}, file)
        os.replace(name, path)
