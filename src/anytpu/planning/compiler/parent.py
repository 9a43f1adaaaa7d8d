"""`Child`: the process in which libtpu runs, from its parent's side: started, asked, killed.

Idea: a warm child is kept for the next request, because starting one takes two seconds. A child that crashed or was too
slow is lost, and with it only its compilation.

Rule: a child's output goes to a file in memory, whose last lines are shown when it ends badly. A Ctrl-C of the terminal
does not reach it: the parent kills it.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from typing import Any

from anytpu import _env
from anytpu.planning.compiler import memory, wire

_TAIL_BYTES, _TAIL_LINES = 65536, 8
_ENDS_S = 30.0  # A crash takes its time to report itself.


# After the standard library and before other packages, where this anytpu would not be found anyway.
_START = """
import sys
folder = sys.argv[1]
if folder not in sys.path:
    others = [at for at, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))]
    sys.path.insert(min(others, default=len(sys.path)), folder)
from anytpu.planning.compiler.child import main
main()
"""


_WORKING: set[int] = set()
"""The children of this process that have a request to answer, by their numbers."""


class EndedError(Exception):
    """The child ended before it answered.

    Attributes:
        status: its exit status, or the negative number of the signal that ended it.
        last_words: its last printed lines.
        peak_bytes: maximum of its observed resident memory, bytes.
    """

    def __init__(self, status: int, last_words: str, peak_bytes: int = 0) -> None:
        super().__init__(status, last_words, peak_bytes)
        self.status, self.last_words, self.peak_bytes = status, last_words, peak_bytes


class TooSlowError(Exception):
    """The child did not answer in time."""


class TooLargeError(Exception):
    """The child took more memory than the compilers may have.

    Attributes:
        taken_bytes: its resident memory, bytes.
        limit_bytes: limit of all compilers of this process, bytes.
    """

    def __init__(self, taken_bytes: int, limit_bytes: int) -> None:
        super().__init__(taken_bytes, limit_bytes)
        self.taken_bytes, self.limit_bytes = taken_bytes, limit_bytes


class UnusableError(Exception):
    """The compiler cannot be loaded; the message says why."""


class Child:
    """A process that compiles.

    Attributes:
        is_busy: whether it has a request to answer.
        surroundings: the environment at its start, on which its answers depend.
    """

    def __init__(self) -> None:
        self.surroundings = _env.compiler_surroundings()
        self._log = os.fdopen(os.memfd_create("anytpu-compiler"), "w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(_env.package_folder())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_env.compiler_environment(),
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._greeted = self.is_busy = self._is_ended = False
        self._peak_bytes = 0

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs, and was not told to end."""
        return not self._is_ended and self._process.poll() is None

    def ask(self, header: dict[str, Any], code: bytes, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Ask for one compilation, and wait for the answer.

        Raises:
            EndedError: the child ended before it answered.
            TooLargeError: it took more memory than there is for it.
            TooSlowError: it did not answer in time.
            UnusableError: the compiler cannot be loaded.
        """
        until = time.monotonic() + timeout_s
        try:
            _WORKING.add(self.pid)
            self._budget, self._peak_bytes = memory.budget(_WORKING.copy()), 0
            if not self._greeted:
                self._greet(until)
            wire.send(self._requests, header, code)
            self.is_busy = True
            return self._answer(until)
        except (EOFError, OSError) as error:
            raise EndedError(self._status(), last_words(self._printed()), self._peak_bytes) from error
        finally:
            self.is_busy = False
            _WORKING.discard(self.pid)

    def end(self) -> None:
        """End the process, if it runs. A thread that waits for its answer gets `EndedError`."""
        self._is_ended = True
        self._process.kill()

    def kill(self) -> None:
        """End the process, if it runs, and delete its output. No thread may wait for it."""
        self.end()
        self._process.wait()
        for stream in (self._requests, self._answers, self._log):
            with contextlib.suppress(OSError):
                stream.close()

    def _greet(self, until: float) -> None:
        greeting, _ = self._answer(until)
        if "unusable" in greeting:
            raise UnusableError(greeting["unusable"])
        self._greeted = True

    def _answer(self, until: float) -> tuple[dict[str, Any], bytes]:
        while not select.select([self._answers], [], [], max(min(until - time.monotonic(), memory.LOOKS_S), 0))[0]:
            taken_bytes = memory.resident_bytes(self.pid)
            self._peak_bytes = max(self._peak_bytes, taken_bytes)
            if self._budget.is_exceeded(self.pid, _WORKING.copy()):
                raise TooLargeError(taken_bytes, self._budget.limit_bytes or 0)
            if time.monotonic() >= until:
                raise TooSlowError
        return wire.receive(self._answers)

    def _status(self) -> int:
        """Wait for a process that has closed its end, and return its exit status."""
        try:
            return self._process.wait(timeout=_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _printed(self) -> str:
        if self._log.closed:
            return ""
        self._log.seek(max(self._log.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
        return self._log.read().decode(errors="replace")


def last_words(printed: str) -> str:
    """Return the lines that explain the end of a process: the fatal ones of libtpu's log, else the last ones.

    Example:
        >>> last_words("I1121 10:00:00.1 12 a.cc:1] hello\\nF1121 10:00:00.2 12 b.cc:2] Check failed: x\\n    @ 0x7f5a")
        'F1121 10:00:00.2 12 b.cc:2] Check failed: x'
    """
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    fatal = [line for line in lines if re.match(r"F\d{4} ", line)]
    return "\n".join(dict.fromkeys(fatal)) or "\n".join(lines[-_TAIL_LINES:])
