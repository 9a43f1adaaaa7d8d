"""`Child`: the process that libtpu runs in, seen from its parent: started, asked, killed.

Idea: a warm child is kept for the next request, since it takes two seconds to start one. One that crashed or was too
slow is lost, and with it nothing but its compilation.

Rule: what is printed in a child goes to a file without a name, whose last lines are shown when it ends badly. A
Ctrl-C of the terminal does not reach it: the parent kills it.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import tempfile
import time
from typing import Any

from anytpu import _env
from anytpu.planning.compiler import wire

_TAIL_BYTES, _TAIL_LINES = 8192, 12


class EndedError(Exception):
    """The child ended before it answered."""


class TooSlowError(Exception):
    """The child did not answer in time."""


class Child:
    """A process that compiles."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "anytpu.planning.compiler.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_env.compiler_environment(),
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._greeted = False

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def ask(self, header: dict[str, Any], code: bytes, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Ask for one compilation, and wait for the answer.

        Raises:
            EndedError: the child ended before it answered.
            TooSlowError: it did not answer in time.
        """
        until = time.monotonic() + timeout_s
        try:
            if not self._greeted:
                self._answer(until)
                self._greeted = True
            wire.send(self._requests, header, code)
            return self._answer(until)
        except (EOFError, OSError) as error:
            raise EndedError from error

    def _answer(self, until: float) -> tuple[dict[str, Any], bytes]:
        if not select.select([self._answers], [], [], max(until - time.monotonic(), 0))[0]:
            raise TooSlowError
        return wire.receive(self._answers)

    def kill(self) -> None:
        """End the process, if it runs."""
        self._process.kill()
        self._process.wait()
        for stream in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                stream.close()

    def wait(self) -> int:
        """Wait for a process that has closed its end, and return how it ended: its status, or -signal."""
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def last_lines(self) -> str:
        """Return the last lines that were printed in the process."""
        size_bytes = self._log.seek(0, 2)
        self._log.seek(max(size_bytes - _TAIL_BYTES, 0))
        lines = self._log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])
