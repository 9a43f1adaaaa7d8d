"""`run_processes`: start one program as several processes on this machine, and end all when one fails.

Idea: one thread waits for output, signals and ends of processes, and does what `Supervision` decides. Each process has
a session of its own, so Ctrl-C reaches it once, through this process.

Rule: no started process outlives the launch. On Linux the kernel kills them if this process is killed. Descendants of a
process that exits with status 0 may outlive it; those of any other process are killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TextIO

from rich.console import Console

from anytpu.launch.lines import LineBuffer, last_words
from anytpu.launch.supervision import ProcessEnd, Supervision

PROGRESS_S = 5.0
"""Seconds between two prints of a line that has no end yet, such as a progress bar."""
_KEPT_LINES = 2000
_CHUNK_BYTES = 1 << 16
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COLORS = (36, 33, 35, 32, 34, 31)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run_processes(command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> int:
    """Run a command once for each environment, until all have ended; return the exit status of the launch.

    Args:
        command: the program and its arguments.
        environments: environment variables of each process, by index.
    """
    count = len(environments)
    with _received_signals() as signals, contextlib.ExitStack() as stack:
        started = (_ChildProcess(index, count, command, environment) for index, environment in enumerate(environments))
        return _Launch([stack.enter_context(process) for process in started], signals).run()


class _LabelledStream:
    """One output stream of a process: read from a pipe, and written with the label of the process.

    Args:
        pipe: the reading end.
        file: the stream of this process that takes the lines.
        label: start of each line.

    Attributes:
        is_open: whether the pipe may still have output.
        last_lines: the newest lines.
        is_hidden: whether lines are counted in `hidden_lines` instead of written.
    """

    def __init__(self, pipe: IO[bytes], file: TextIO, label: bytes) -> None:
        self.pipe = pipe
        self.is_open = True
        self.last_lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self.is_hidden = False
        self.hidden_lines = 0
        self._file = file
        self._label = label
        self._buffer = LineBuffer()
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> bool:
        """Copy one chunk; return whether there may be more now."""
        try:
            chunk = os.read(self.pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self.is_open = bool(chunk)
        self._write(self._buffer.feed(chunk))
        return self.is_open

    def write_unfinished(self) -> None:
        """Write the line that has no end yet, if it is new."""
        line = self._buffer.unfinished()
        if line is not None:
            self._write([line])

    def _write(self, lines: Sequence[bytes]) -> None:
        self.last_lines.extend(lines)
        if self.is_hidden:
            self.hidden_lines += len(lines)
        elif lines:
            self._file.flush()
            self._file.buffer.write(b"".join(self._label + line + b"\n" for line in lines))
            self._file.buffer.flush()


class _ChildProcess:
    """One process of a launch; at the end of the `with` block it is killed if it still runs.

    Args:
        index: index of the process.
        count: number of processes.
        command: the program and its arguments.
        environment: its environment variables.
    """

    def __init__(self, index: int, count: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.index = index
        self._popen = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )
        assert self._popen.stdout is not None and self._popen.stderr is not None
        self.stderr = _LabelledStream(self._popen.stderr, sys.stderr, _label(index, count, sys.stderr))
        self.streams = (_LabelledStream(self._popen.stdout, sys.stdout, _label(index, count, sys.stdout)), self.stderr)

    def __enter__(self) -> _ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._popen.returncode is None:
            self.send(signal.SIGKILL)
            self._popen.wait()
        for stream in self.streams:
            stream.pipe.close()

    def send(self, number: int) -> None:
        """Send a signal; SIGKILL also to the processes that it has started."""
        (os.killpg if number == signal.SIGKILL else os.kill)(self._popen.pid, number)

    def end(self) -> ProcessEnd | None:
        """Return its end, or None while it runs. Processes that an unsuccessful one has started are killed."""
        # The process keeps its id until `poll`, so the signal cannot reach another group.
        ended = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        if ended.si_status != 0:
            os.killpg(self._popen.pid, signal.SIGKILL)
        return ProcessEnd(self.index, self._popen.wait())


class _Launch:
    """The loop over the events of a launch.

    Args:
        processes: the started processes.
        signals: socket with the number of each received signal as a byte.
    """

    def __init__(self, processes: Sequence[_ChildProcess], signals: socket.socket) -> None:
        self._processes = processes
        self._signals = signals
        self._supervision = Supervision(len(processes))
        self._progress_s = time.monotonic() + PROGRESS_S

    def run(self) -> int:
        """Run until all processes have ended; return the exit status."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals, selectors.EVENT_READ)
            for stream in self._streams():
                selector.register(stream.pipe, selectors.EVENT_READ, stream)
            while self._supervision.running:
                ready = selector.select(self._timeout_s())
                for key, _ in ready:
                    if key.data is not None and not key.data.read() and not key.data.is_open:
                        selector.unregister(key.fileobj)
                if any(key.data is None for key, _ in ready):
                    self._take_signals()
                self._take_time()
        self._report()
        return self._supervision.exit_status

    def _streams(self) -> Iterator[_LabelledStream]:
        for process in self._processes:
            yield from process.streams

    def _timeout_s(self) -> float:
        due_s = min(filter(None, (self._progress_s, self._supervision.deadline_s)))
        return max(0.0, due_s - time.monotonic())

    def _take_signals(self) -> None:
        received = self._signals.recv(_CHUNK_BYTES)
        for number in received:
            if number in _STOPPING:
                self._send(self._supervision.after_signal(number))
        if signal.SIGCHLD in received:
            self._take_ends()

    def _take_ends(self) -> None:
        ends = []
        for index in sorted(self._supervision.running):
            end = self._processes[index].end()
            if end is not None:
                ends.append(end)
                # Its pipes may stay open, held by processes that it has started. Read what is there now.
                for stream in self._processes[index].streams:
                    while stream.read():
                        pass
                    stream.write_unfinished()
        self._send(self._supervision.after_ends(ends, time.monotonic()))
        # What the other processes print on stderr from now on follows from the failure.
        if self._supervision.has_failed:
            for index in self._supervision.running:
                self._processes[index].stderr.is_hidden = True

    def _take_time(self) -> None:
        now_s = time.monotonic()
        if self._supervision.deadline_s is not None and now_s >= self._supervision.deadline_s:
            self._send(self._supervision.at_deadline(now_s))
        if now_s >= self._progress_s:
            self._progress_s = now_s + PROGRESS_S
            for stream in self._streams():
                stream.write_unfinished()

    def _send(self, number: int | None) -> None:
        if number is not None:
            for index in self._supervision.running:
                self._processes[index].send(number)

    def _report(self) -> None:
        """Print the last words of the process that failed, and one line about it."""
        if self._supervision.killed:
            # Which of them ended first is chance, so no process is named as the cause.
            print("anytpu launch: a second signal killed the processes", file=sys.stderr, flush=True)
        failure = self._supervision.failure
        if failure is None:
            return
        if self._supervision.has_failed:
            lines = last_words(tuple(self._processes[failure.index].stderr.last_lines))
            sys.stderr.flush()
            sys.stderr.buffer.write(b"".join(line + b"\n" for line in lines))
        hidden = sum(process.stderr.hidden_lines for process in self._processes)
        later = "1 later line" if hidden == 1 else f"{hidden} later lines"
        is_are = "is" if hidden == 1 else "are"
        note = f" ({later} of the other processes on stderr {is_are} left out)" if hidden else ""
        name = f"process {failure.index} of {len(self._processes)}"
        print(f"anytpu launch: {name} {failure}{note}", file=sys.stderr, flush=True)


def _label(index: int, count: int, file: TextIO) -> bytes:
    """Return the start of each line of a process, in color on a terminal; all have the same width."""
    label, width = f"[{index}]", len(f"[{count - 1}]")
    space = " " * (width - len(label) + 1)
    if Console(file=file).color_system is None:
        return f"{label}{space}".encode()
    return f"\x1b[{_COLORS[index % len(_COLORS)]}m{label}\x1b[0m{space}".encode()


def _end_with_parent() -> Callable[[], None] | None:
    """Return a function that asks the kernel, in a new process, to kill it when this one ends; None if it cannot."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # It has ended before the request.
            os._exit(1)

    return ask


@contextlib.contextmanager
def _received_signals() -> Iterator[socket.socket]:
    """Yield a socket that gets a byte for each signal: a stopping one that is not ignored, or SIGCHLD."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    previous_fd = signal.set_wakeup_fd(theirs.fileno())
    numbers = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    # Python writes a byte only for a signal that has a handler in Python, so each gets one.
    before = {number: signal.signal(number, lambda *_: None) for number in (*numbers, signal.SIGCHLD)}
    try:
        yield ours
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number, previous in before.items():
            signal.signal(number, previous)
        ours.close()
        theirs.close()
