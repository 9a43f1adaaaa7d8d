"""`Child`: the process in which libtpu runs, from its parent's side: started, asked, killed.

Idea: a warm child is kept for the next request, because starting one takes two seconds. A child that crashed or was too
slow is lost, and with it only its compilation. The compiler takes up to tens of gigabytes for hundreds of layers, and
the kernel kills some process of the machine when memory runs out. So the parent polls its children while it waits.
Before memory runs out it ends the youngest child, whose compilation is repeated alone. One that takes too much alone
ends too.

Protocol, over a pipe: the child sends {"is_ready": True} once it reads, before it has loaded libtpu. Then each request
(header, code) gets one answer (header, text). A header has "said" if the compiler refused, or "unusable" if it cannot
be loaded. A child ends by itself when the parent has gone or no request has come for two minutes.

Rule: all children share nine tenths of the memory that was available when the last of them began; without a reported
size there is no limit. A child's output goes to a file in memory, whose last lines are shown when it ends badly. A
Ctrl-C of the terminal does not reach it: the parent kills it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from anytpu import _env, units
from anytpu.errors import CompilerMissingError, NoAnswerError
from anytpu.files import memory
from anytpu.files.memory import resident_bytes

Answer = tuple[dict[str, Any], bytes]
"""A child's answer: a header, and the text of the compiled program."""

LESS_MEMORY = (
    "Plan on a machine with more memory, one system at a time, or plan less: layers that are alike compile once inside "
    "a jax.lax.scan."
)

_SHARE = 0.9  # Of the memory that is available, for all compilers together.
_LOOKS_S = 0.1  # At 5 GB/s a compiler takes half a gigabyte between two looks.
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
main(int(sys.argv[2]))
"""


_BUSY: list[int] = []
"""Process ids of the children that have a request to answer, the one that was asked first before the others."""


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


class CrowdedError(Exception):
    """The compilers took more memory together than they may, and this one, the youngest, made room for the others."""


class Child:
    """A process that compiles.

    Attributes:
        surroundings: the environment at its start, on which its answers depend.
    """

    def __init__(self) -> None:
        self.surroundings = _env.compiler_surroundings()
        self._log = os.fdopen(os.memfd_create("anytpu-compiler"), "w+b")
        self._connection, theirs = multiprocessing.Pipe()
        # This process closes its copy of the child's side, so that the pipe closes when the child dies.
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, str(_env.package_folder()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=_env.compiler_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._reaper = threading.Thread(target=self._reap, name="anytpu reaps a compiler", daemon=True)
        self._reaper.start()
        self._is_ended = False
        self._is_ready = False
        self._limit_bytes: int | None = None
        self._peak_bytes = 0

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs, and was not told to end."""
        if self._is_ended or self._process.returncode is not None:
            return False
        # Not `Popen.poll`: it also returns None while the thread of `_reap` has the lock that both take.
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def ask(self, header: dict[str, Any], code: bytes, timeout_s: float, job: str) -> Answer:
        """Ask for one compilation, and wait for the answer.

        Args:
            header: the request without its code.
            code: the program's code.
            timeout_s: time limit, seconds.
            job: program and target, for the errors: "'step/train' for v3-8".

        Raises:
            CompilerMissingError: the compiler cannot be loaded.
            CrowdedError: it must be asked again when no other child is busy.
            EndedError: the child ended before it answered.
            NoAnswerError: it took too long or too much memory.
        """
        until = time.monotonic() + timeout_s
        # 1. First of all: the limit of this request includes the memory of this child.
        _BUSY.append(self.pid)
        try:
            self._limit_bytes, self._peak_bytes = memory_limit_bytes(_BUSY.copy()), 0
            # 2. Wait for a new child.
            # A child that does not read would block a large request beyond its time limit.
            if not self._is_ready:
                self._answer(until, timeout_s, job)
                self._is_ready = True
            # 3. Ask. `_answer` polls, so that the limits of time and memory hold while the compiler runs.
            self._connection.send((header, code))
            answer, text = self._answer(until, timeout_s, job)
        except (EOFError, OSError) as error:
            raise EndedError(self._status(), extract_last_words(self._read_log()), self._peak_bytes) from error
        finally:
            _BUSY.remove(self.pid)
        if "unusable" in answer:
            raise CompilerMissingError(
                f"The TPU compiler, libtpu, is installed and cannot be used here: {answer['unusable']}. Install the "
                "one that this JAX pairs with: pip install --force-reinstall 'anytpu[plan]'"
            )
        return answer, text

    def end(self) -> None:
        """End the process, if it runs, and wait for its end. A thread that waits for its answer gets `EndedError`."""
        self._is_ended = True
        self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        """End the process, if it runs, and delete its output. No thread may wait for it."""
        self.end()
        for stream in (self._connection, self._log):
            with contextlib.suppress(OSError):
                stream.close()

    def _reap(self) -> None:
        """Collect the exit status as soon as the process ends: an idle one ends by itself, and nobody waits for it."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # `Popen` itself must collect the status.
        self._process.poll()

    def _answer(self, until: float, timeout_s: float, job: str) -> Answer:
        while not self._connection.poll(max(min(until - time.monotonic(), _LOOKS_S), 0)):
            taken_bytes = resident_bytes(self.pid)
            self._peak_bytes = max(self._peak_bytes, taken_bytes)
            busy = _BUSY.copy()
            # Each busy child has a thread here, and only the youngest gives way: the older ones have more work to lose.
            if self._limit_bytes is not None and must_make_room(self._limit_bytes, self.pid, busy):
                if len(busy) > 1:
                    raise CrowdedError
                raise NoAnswerError(_too_large(job, taken_bytes, self._limit_bytes))
            if time.monotonic() >= until:
                raise NoAnswerError(_too_slow(job, timeout_s))
        return self._connection.recv()

    def _status(self) -> int:
        """Wait for a process that has closed its end, and return its exit status."""
        try:
            # The pipe closes before the process has ended: a crash still writes its report.
            return self._process.wait(timeout=_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _read_log(self) -> str:
        if self._log.closed:
            return ""
        self._log.seek(max(self._log.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
        return self._log.read().decode(errors="replace")


def memory_limit_bytes(pids: Iterable[int]) -> int | None:
    """Return the memory that all compilers may take from now on, bytes; None if the system does not report its memory.

    Args:
        pids: process ids of the busy compilers, whose memory is theirs already.
    """
    available_bytes = memory.available_memory_bytes()
    return None if available_bytes is None else int(_SHARE * (available_bytes + sum(map(resident_bytes, pids))))


def is_busy() -> bool:
    """Return whether a child has a request to answer."""
    return bool(_BUSY)


def forget_children() -> None:
    """Forget the busy children: in a forked process they are those of another."""
    _BUSY.clear()


def must_make_room(limit_bytes: int, pid: int, pids: Sequence[int]) -> bool:
    """Return whether the busy compilers `pids`, oldest first, take more than the limit, and `pid` is the youngest."""
    return pid == pids[-1] and sum(map(resident_bytes, pids)) > limit_bytes


def extract_last_words(printed: str) -> str:
    """Return the lines that explain the end of a process: the fatal ones of libtpu's log, else the last ones.

    Example:
        >>> extract_last_words("I1121 10:00:00.1 12 a.cc:1] hi\\nF1121 10:00:00.2 12 b.cc:2] Check failed: x\\n @ 0x")
        'F1121 10:00:00.2 12 b.cc:2] Check failed: x'
    """
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    fatal = [line for line in lines if re.match(r"F\d{4} ", line)]
    return "\n".join(dict.fromkeys(fatal)) or "\n".join(lines[-_TAIL_LINES:])


def _too_slow(job: str, timeout_s: float) -> str:
    return (
        f"The TPU compiler took longer than {timeout_s:g} s to compile {job}, and was ended. Give it more with "
        f"timeout_s={2 * timeout_s:g} (--timeout {2 * timeout_s:g}): its schedule takes a tenth of the time of its "
        "code. Or plan less at a time: layers that are alike compile once inside a jax.lax.scan."
    )


def _too_large(job: str, taken_bytes: int, limit_bytes: int) -> str:
    return (
        f"The TPU compiler took {units.format_bytes(taken_bytes)} of this machine's memory to compile {job}, and was "
        f"ended: the limit for all compilations together is {units.format_bytes(limit_bytes)}, 90 % of the memory that "
        f"was available. {LESS_MEMORY}"
    )
