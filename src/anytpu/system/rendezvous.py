"""The rendezvous of a job: a process, started by host 0, at which all hosts join and which watches them.

Idea: each host keeps one connection to it. While the hosts join it compares their greetings, and then starts JAX's
coordination service. After that each host sends a heartbeat, and a goodbye at its end. A host that ends without a
goodbye, or is silent, ends the job: the others get one final error that names it. The process belongs to no host, so
the end of host 0 is reported too.

A job is in one of five phases:

1. Joining: hosts connect and send their greetings. Connections without a valid greeting are unauthenticated.
2. Refused: the job cannot start. Each host is notified of the reason, also a host that connects later.
3. Running: all hosts have joined. Heartbeats and exceptions are watched.
4. Failing: there is a final error. Each host gets it, and the rendezvous ends soon after.
5. Finished: all hosts said goodbye, and are notified that they may end.

Rule: one thread, and no blocking call but `select`. An unauthenticated connection changes nothing: at most it is
closed. The process ends when all connections are closed, and soon after a refusal or a final error in any case.

Lines of a host: a `Greeting`; then empty lines (heartbeats), `{"exception": text}` (its uncaught exception),
`{"goodbye": true}`.
Lines to a host while it joins: `{"error": text}` or `{"service": port}`. Later: empty lines, `{"warning": text}`,
`{"done": true}`, and `{"final_error": text, "exception": text}`. Its exception is that of the host that is the cause.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from anytpu import _jax
from anytpu.system import join_rules
from anytpu.system.join_rules import CLIENT_HEARTBEAT_S, Greeting, Limits, listed_hosts
from anytpu.units import printable

_TICK_S = 0.1
_MAX_UNAUTHENTICATED = 256
_MAX_PORTS = 64


@dataclasses.dataclass(eq=False)
class Connection:
    """A connection: of a host, or unauthenticated.

    Attributes:
        socket: the connection.
        start_s: time of its start.
        received_s: time of the last received bytes.
        received: bytes of the incomplete line.
        greeting: greeting of the host; None for an unauthenticated connection.
        exception_text: the exception that ended the host, as text; None before it.
        exception_s: time of the exception.
        goodbye_s: time of its goodbye.
    """

    socket: socket.socket
    start_s: float
    received_s: float
    received: bytes = b""
    greeting: Greeting | None = None
    exception_text: str | None = None
    exception_s: float | None = None
    goodbye_s: float | None = None

    def send(self, message: dict[str, Any] | None) -> None:
        """Send a line, or a heartbeat. A host that does not read gets nothing."""
        with contextlib.suppress(OSError):
            self.socket.send(join_rules.line_of(message))


class Rendezvous:
    """The connections of a job, and its state.

    Args:
        listener: the listening socket.
        first: the greeting that host 0 will send.
        limits: the time limits.
        start_service: starts JAX's service for a number of clients, and returns its port.
    """

    def __init__(
        self, listener: socket.socket, first: Greeting, limits: Limits, start_service: Callable[[int], int]
    ) -> None:
        self._listener: socket.socket | None = listener
        self._first = first
        self._limits = limits
        self._start_service = start_service
        self._connections: list[Connection] = []
        self._start_s = self._heartbeat_s = time.monotonic()
        self._refusal: str | None = None
        self._notified: set[int] = set()
        self._is_joined = self._is_warned = self._is_closed = False
        self._ended_s: float | None = None
        self._final_error: dict[str, Any] | None = None
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve the job until its end."""
        while not self._is_over():
            for key, _ in self._selector.select(_TICK_S):
                if key.data is None:
                    self._accept()
                # An earlier event may have closed this connection.
                elif key.data in self._connections:
                    self._receive(key.data)
            self._tick(time.monotonic())

    def _hosts(self) -> dict[int, Connection]:
        return {connection.greeting.index: connection for connection in self._connections if connection.greeting}

    def _is_over(self) -> bool:
        if self._is_closed:
            return True
        if self._is_joined:
            return not self._hosts()
        # A refused host may have an index out of range. Then it does not count as one of the hosts to notify.
        return self._refusal is not None and self._notified.issuperset(range(self._first.processes))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            accepted, _ = self._listener.accept() if self._listener else (None, None)
            if accepted is None:
                return
            # A host greets at once, so the oldest of too many silent connections is none.
            silent = [connection for connection in self._connections if connection.greeting is None]
            if len(silent) >= _MAX_UNAUTHENTICATED:
                self._close(silent[0])
            accepted.setblocking(False)
            connection = Connection(accepted, time.monotonic(), time.monotonic())
            self._connections.append(connection)
            self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _receive(self, connection: Connection) -> None:
        try:
            received = connection.socket.recv(join_rules.MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._take_end(connection)
            return
        connection.received_s = time.monotonic()
        *lines, connection.received = (connection.received + received).split(b"\n")
        for line in lines:
            # A line may end the connection. Its further lines are not read then.
            if connection in self._connections:
                self._take_line(connection, line)
        if len(connection.received) > join_rules.MAX_LINE_BYTES:
            self._take_end(connection)

    def _take_line(self, connection: Connection, line: bytes) -> None:
        """Act on one line."""
        if connection.greeting is None:
            greeting = join_rules.parse_greeting(line)
            if greeting is None:
                self._close(connection)
            else:
                self._admit(connection, greeting)
        elif line:
            fields = join_rules.parse_line(line)
            if fields.get("goodbye"):
                connection.goodbye_s = connection.received_s
            elif isinstance(text := fields.get("exception"), str) and text:
                connection.exception_text, connection.exception_s = printable(text), connection.received_s

    def _admit(self, connection: Connection, greeting: Greeting) -> None:
        if not join_rules.has_token(greeting, self._first.token):
            connection.send({"error": "this host has another ANYTPU_JOB_TOKEN than host 0, or none"})
            self._close(connection)
            return
        taken = {index: host.greeting.name for index, host in self._hosts().items() if host.greeting}
        reason = self._refusal or join_rules.refusal(greeting, self._first, taken)
        if self._is_joined:
            connection.send(
                {"error": f"a job of {self._first.processes} hosts runs there already: {reason or 'it ends'}"}
            )
            self._close(connection)
            return
        connection.greeting = greeting
        if reason:
            self._refuse(reason)
        elif len(self._hosts()) == self._first.processes:
            self._join()

    def _join(self) -> None:
        port = self._start_service(self._first.processes)
        self._is_joined = True
        for connection in self._hosts().values():
            connection.received_s = time.monotonic()
            connection.send({"service": port})

    def _refuse(self, reason: str) -> None:
        """Notify all hosts of the reason why the job cannot start: the connected ones now, others when they connect."""
        if self._refusal is None:
            self._refusal, self._ended_s = reason, time.monotonic()
        for connection in list(self._connections):
            if connection.greeting:
                connection.send({"error": self._refusal})
                self._notified.add(connection.greeting.index)
                self._close(connection)

    def _take_end(self, connection: Connection) -> None:
        """Act on a connection that was closed by the other side, or sent a line that is too long."""
        self._close(connection)
        greeting = connection.greeting
        if greeting is None or connection.goodbye_s is not None:
            return
        if not self._is_joined:
            self._notified.add(greeting.index)
            self._refuse(f"{self._named(connection)} ended while the hosts were joining")
        else:
            reason = connection.exception_text or "it was killed, or crashed, or its machine failed"
            self._fail_by_host(connection, reason)
            self._send_final_error()

    def _fail_by_host(self, cause: Connection, reason: str) -> None:
        """End the job because a host ended."""
        self._fail(f"{self._named(cause)} ended: {reason}", cause.exception_text)

    def _fail(self, text: str, exception_text: str | None) -> None:
        """Make the final error, unless there is one; the hosts with the same exception as its cause get it first."""
        if self._ended_s is None:
            self._ended_s = time.monotonic()
            self._stop_listening()
            self._final_error = {"final_error": text, "exception": exception_text}
            # Hosts with the same exception as the cause end by themselves. The others get the final error when the
            # cause has ended.
            for connection in self._hosts().values():
                if exception_text is not None and connection.exception_text == exception_text:
                    connection.send(self._final_error)
            if exception_text is None:
                self._send_final_error()

    def _send_final_error(self) -> None:
        """Send the final error to all hosts that did not get it. The cause has printed its traceback, and has ended."""
        final_error, self._final_error = self._final_error, None
        if final_error is not None:
            for connection in self._hosts().values():
                if final_error["exception"] is None or connection.exception_text != final_error["exception"]:
                    connection.send(final_error)

    def _tick(self, now_s: float) -> None:
        """Act on the clock."""
        limits = self._limits
        for connection in [connection for connection in self._connections if connection.greeting is None]:
            if now_s - connection.start_s > limits.greeting_s:
                self._close(connection)
        # Phases 2, 4 and 5: refused, failing or finished.
        if self._ended_s is not None and now_s - self._ended_s > limits.final_error_s:
            self._end()
        elif self._final_error is not None and self._ended_s is not None and now_s - self._ended_s > limits.exit_s:
            self._send_final_error()
        # Phase 1: joining.
        elif not self._is_joined:
            if self._refusal is None and now_s - self._start_s > limits.join_s:
                missing = set(range(self._first.processes)) - self._hosts().keys()
                self._refuse(join_rules.missing_text(missing, self._first.processes, limits.join_s))
        # Phase 3: running.
        elif self._ended_s is None:
            self._watch(now_s)
        if now_s - self._heartbeat_s > limits.beat_s:
            self._heartbeat_s = now_s
            for connection in self._hosts().values():
                connection.send(None)

    def _watch(self, now_s: float) -> None:
        present, limits = self._hosts(), self._limits
        failed = [
            (connection.exception_s, index)
            for index, connection in present.items()
            if connection.exception_s is not None
        ]
        if failed and now_s - min(failed)[0] > limits.exception_s:
            first = present[min(failed)[1]]
            self._fail_by_host(first, first.exception_text or "")
            return
        for connection in present.values():
            if (silent_s := now_s - connection.received_s) > limits.silence_s:
                self._fail(f"{self._named(connection)} is frozen: it has sent nothing for {silent_s:.0f} s", None)
                return
        leaving = {
            index: connection.goodbye_s for index, connection in present.items() if connection.goodbye_s is not None
        }
        if leaving and len(leaving) == len(present):
            self._ended_s = now_s
            self._stop_listening()
            for connection in present.values():
                connection.send({"done": True})
        elif leaving:
            self._warn_about_late_hosts(present, leaving, now_s)

    def _warn_about_late_hosts(self, present: dict[int, Connection], leaving: dict[int, float], now_s: float) -> None:
        """Warn the hosts that still run that others wait for them, and end the job if they run for too long."""
        waited_s = now_s - min(leaving.values())
        staying = sorted(present.keys() - leaving.keys())
        text = (
            f"{listed_hosts(leaving)} of {self._first.processes} came to the end of the program {waited_s:.0f} s ago, "
            f"and {listed_hosts(staying)} still {'runs' if len(staying) == 1 else 'run'}. Do all hosts run the same "
            "script with the same arguments?"
        )
        if waited_s > self._limits.goodbye_s:
            self._fail(text, None)
        elif waited_s > self._limits.warning_s and not self._is_warned:
            self._is_warned = True
            for index in staying:
                present[index].send({"warning": text})

    def _named(self, connection: Connection) -> str:
        assert connection.greeting is not None
        return f"host {connection.greeting.index} of {self._first.processes} ({connection.greeting.name})"

    def _close(self, connection: Connection) -> None:
        self._connections.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _end(self) -> None:
        """Close everything, so that `run` returns."""
        self._is_closed = True
        for connection in list(self._connections):
            self._close(connection)


def start_service(host: str, port: int) -> Callable[[int], int]:
    """Return a function that starts JAX's coordination service for a number of clients, and returns its port.

    Args:
        host: address to listen at.
        port: the port is the next free one after this.
    """
    services = []

    def start(processes: int) -> int:
        free = _next_free_port(host, port)
        name = f"[{host}]" if ":" in host else host
        services.append(_jax.coordination_service(f"{name}:{free}", processes, CLIENT_HEARTBEAT_S))
        return free

    return start


def _next_free_port(host: str, port: int) -> int:
    """Return a free port. JAX's service ends the process if its port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [*range(port + 1, min(port + _MAX_PORTS, 65536)), 0]:
        with socket.socket(family) as probe, contextlib.suppress(OSError):
            probe.bind((host, candidate))
            return probe.getsockname()[1]
    raise OSError(f"{host} has no free port")


def main() -> None:
    """Serve the job that host 0 describes in one line on the standard input."""
    settings = json.loads(sys.stdin.readline())
    listener = socket.socket(fileno=settings["listener"])
    first, limits = Greeting(**settings["first"]), Limits(**settings["limits"])
    host, port = listener.getsockname()[:2]
    Rendezvous(listener, first, limits, start_service(host, port)).run()
    os._exit(0)  # JAX's service would wait for its clients.


if __name__ == "__main__":
    main()
