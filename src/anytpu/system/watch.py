"""The connection of a host to the rendezvous, after it joined: heartbeats, an exception, the final error, a goodbye.

Idea: a host whose peer died may hang in a collective for half an hour, where Python cannot interrupt it. So a thread
listens. On a final error it prints one line and ends the process, with the status of a host that lost the others.

Rule: at most one error is printed for the failure of another host. A host whose own exception is the cause prints its
own traceback.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from anytpu._restarts import LOST_STATUS
from anytpu.system.exits import ScriptEnd
from anytpu.system.job import HostJob
from anytpu.system.join_rules import MAX_LINE_BYTES, Limits, line_of, parse_line
from anytpu.units import printable

ADVICE = "Start the job again; a fit with checkpoint_dir continues from its last checkpoint"
"""End of a message about a job that ended because of one host."""

_FLUSH_S = 1.0


class Watch:
    """The connection to the rendezvous, and the thread that listens.

    Args:
        connection: the connection, on which the job has started.
        job: the job.
        limits: the time limits.
        received: the bytes that followed the reply of the rendezvous.
        leave: called once all hosts have come to their end.
    """

    def __init__(
        self, connection: socket.socket, job: HostJob, limits: Limits, received: bytes, leave: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._job = job
        self._limits = limits
        self._received = received
        self._leave = leave
        self._exception_text: str | None = None
        self._has_final_error = threading.Event()
        self._is_done = threading.Event()
        self._hook: Callable[..., Any] = sys.excepthook
        self._script = ScriptEnd()
        self._thread = threading.Thread(target=self._listen, name="anytpu-hosts", daemon=True)

    def start(self) -> None:
        """Start to listen, and send this process's exception or its goodbye when it ends."""
        self._hook, sys.excepthook = sys.excepthook, self._report_exception
        self._script.watch()
        atexit.register(self._say_goodbye)
        # A forked child has a copy of the connection, and would hide the death of this process.
        os.register_at_fork(after_in_child=self._close_in_child)
        self._thread.start()

    def _send(self, message: dict[str, Any] | None) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(line_of(message))

    def _listen(self) -> None:
        received_s, sent_s = time.monotonic(), 0.0
        # Lines may have come with the reply of the rendezvous.
        self._take(b"")
        self._connection.settimeout(self._limits.beat_s / 4)
        while not self._is_done.is_set():
            if time.monotonic() - sent_s > self._limits.beat_s:
                self._send(None)
                sent_s = time.monotonic()
            try:
                arrived = self._connection.recv(MAX_LINE_BYTES)
            except TimeoutError:
                if time.monotonic() - received_s > self._limits.silence_s:
                    self._lost(f"is silent for {self._limits.silence_s:g} s")
                continue
            except OSError:
                arrived = b""
            if not arrived:
                if not self._is_done.is_set():
                    self._lost("ended")
                return
            received_s = time.monotonic()
            self._take(arrived)

    def _take(self, arrived: bytes) -> None:
        *lines, self._received = (self._received + arrived).split(b"\n")
        for line in filter(None, lines):
            self._read(parse_line(line))

    def _read(self, message: dict[str, Any]) -> None:
        if "warning" in message:
            print(f"anytpu: {message['warning']}", file=sys.stderr, flush=True)
        elif "done" in message:
            self._is_done.set()
        elif "final_error" in message:
            # Either this host is the cause, or its own exception is that of the first one. It prints its traceback.
            is_own = self._exception_text is not None and message.get("exception") == self._exception_text
            if not is_own:
                self._stop(message["final_error"])
            self._has_final_error.set()

    def _lost(self, how: str) -> None:
        self._stop(f"the connection to host 0, at {self._job.address}, {how}")

    def _stop(self, reason: str) -> None:
        """End this process."""
        text = f"anytpu: {reason}; this host, {self._job.index} of {self._job.processes}, stops too. {ADVICE}\n"
        flush = threading.Thread(target=_flush, daemon=True)
        flush.start()
        flush.join(_FLUSH_S)  # The main thread may hold the lock of a stream.
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="replace"))
        os._exit(LOST_STATUS)

    def _report_exception(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        """Send an exception that nobody caught, and let the final error decide which host prints its own."""
        first = str(error).strip().partition("\n")[0]
        self._send_exception(f"{kind.__name__}: {first}" if first else kind.__name__)
        self._hook(kind, error, traceback)

    def _send_exception(self, text: str) -> None:
        """Send the exception that ends this process, and wait for the final error."""
        self._exception_text = printable(text)
        self._send({"exception": self._exception_text})
        self._has_final_error.wait(self._limits.exception_s + self._limits.beat_s)

    def _say_goodbye(self) -> None:
        """Say goodbye, and wait for the goodbyes of all others; after `sys.exit(1)`, end the job."""
        if self._exception_text is not None:
            return
        if failure := self._script.failure():
            self._send_exception(failure)
            return
        self._send({"goodbye": True})
        with contextlib.suppress(KeyboardInterrupt):
            self._is_done.wait()
            self._leave()
        # Before the connection ends: `_listen` would report its end.
        self._is_done.set()
        self._connection.close()

    def _close_in_child(self) -> None:
        self._connection.close()
        sys.excepthook = self._hook
        atexit.unregister(self._say_goodbye)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
