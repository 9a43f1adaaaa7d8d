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

Rule: an unauthenticated connection changes nothing: at most it is closed. The process ends when all hosts have ended,
and soon after a refusal or a final error in any case. SIGTERM and SIGINT do not end it: Slurm sends them to all
processes of a step, and hosts that save their run then still need it.

Lines of a host: a `Greeting`; then empty lines (heartbeats), `{"exception": text}` (its uncaught exception),
`{"goodbye": true}`.
Lines to a host while it joins: `{"error": text}` or `{"service": port}`. Later: empty lines, `{"warning": text}`,
`{"done": true}`, and `{"final_error": text, "exception": text}`. Its exception is that of the host that is the cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
import time
from typing import Any

from anytpu import _jax
from anytpu.system import join_rules
from anytpu.system.join_rules import CLIENT_HEARTBEAT_S, Greeting, Limits, listed_hosts
from anytpu.units import printable

_TICK_S = 0.1
_MAX_UNAUTHENTICATED = 256
_MAX_PORTS = 64


@dataclasses.dataclass(eq=False)
class Host:
    """A host, and its connection.

    Attributes:
        greeting: its greeting.
        writer: its connection.
        received_s: time of the last received line.
        exception_text: the exception that ended the host, as text; None before it.
        exception_s: time of the exception.
        goodbye_s: time of its goodbye.
    """

    greeting: Greeting
    writer: asyncio.StreamWriter
    received_s: float
    exception_text: str | None = None
    exception_s: float | None = None
    goodbye_s: float | None = None

    def send(self, message: dict[str, Any] | None) -> None:
        """Send a line, or a heartbeat."""
        self.writer.write(join_rules.line_of(message))

    def __str__(self) -> str:
        return f"host {self.greeting.index} of {self.greeting.processes} ({self.greeting.name})"


class Rendezvous:
    """The hosts of a job, and its state.

    Args:
        first: the greeting that host 0 will send.
        limits: the time limits.
        address: host and port at which the hosts join; JAX's service gets the next free port.
    """

    def __init__(self, first: Greeting, limits: Limits, address: tuple[str, int]) -> None:
        self._first, self._limits, self._address = first, limits, address
        self._hosts: dict[int, Host] = {}
        self._unauthenticated: dict[asyncio.StreamWriter, None] = {}
        self._refusal: str | None = None
        self._notified: set[int] = set()
        self._is_decided, self._all_are_notified = asyncio.Event(), asyncio.Event()
        self._service: Any = None
        self._failure: Exception | None = None
        self._is_warned = False
        self._heartbeat_s = 0.0
        self._ended_s: float | None = None
        self._final_error: dict[str, Any] | None = None

    async def run(self, listener: socket.socket) -> None:
        """Serve the job until its end."""
        limits = self._limits
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=join_rules.MAX_LINE_BYTES)
        # Phase 1: joining.
        try:
            await asyncio.wait_for(self._is_decided.wait(), limits.join_s)
        except TimeoutError:
            missing = set(range(self._first.processes)) - self._hosts.keys()
            self._refuse(join_rules.missing_text(missing, self._first.processes, limits.join_s))
        if self._failure is not None:
            for host in self._hosts.values():
                host.writer.close()
            raise self._failure
        # Phase 2: refused.
        if self._refusal is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_are_notified.wait(), limits.final_error_s)
            return
        # Phases 3 to 5: running, failing, finished.
        while self._hosts and (self._ended_s is None or time.monotonic() < self._ended_s + limits.final_error_s):
            self._tick(time.monotonic())
            await asyncio.sleep(_TICK_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        # A host greets at once, so the oldest of too many silent connections is none.
        self._unauthenticated[writer] = None
        if len(self._unauthenticated) > _MAX_UNAUTHENTICATED:
            next(iter(self._unauthenticated)).transport.abort()
        host = None
        try:
            greeting = await asyncio.wait_for(reader.readline(), self._limits.greeting_s)
            host = self._admitted(join_rules.parse_greeting(greeting), writer)
            del self._unauthenticated[writer]
            while host is not None and (line := await reader.readline()):
                self._take_line(host, line.strip())
        except (TimeoutError, OSError, ValueError):  # The last for a line that is too long.
            pass
        self._unauthenticated.pop(writer, None)
        writer.close()
        if host is not None and self._hosts.get(host.greeting.index) is host:
            self._take_end(host)

    def _admitted(self, greeting: Greeting | None, writer: asyncio.StreamWriter) -> Host | None:
        """Return the host that sent a greeting; None for one that may not join, which is told why."""
        if greeting is None:
            return None
        host = Host(greeting, writer, time.monotonic())
        if not join_rules.has_token(greeting, self._first.token):
            host.send({"error": "this host has another ANYTPU_JOB_TOKEN than host 0, or none"})
            return None
        taken = {index: other.greeting.name for index, other in self._hosts.items()}
        reason = self._refusal or join_rules.refusal(greeting, self._first, taken)
        if self._service is not None:
            host.send({"error": f"a job of {self._first.processes} hosts runs there already: {reason or 'it ends'}"})
            return None
        if reason is not None:
            self._refuse(reason, host)
            return None
        self._hosts[greeting.index] = host
        if len(self._hosts) == self._first.processes:
            try:
                self._join()
            except Exception as error:  # It ends the process, not only the task of the last host's connection.
                self._failure = error
                self._is_decided.set()
        return host

    def _join(self) -> None:
        """Start JAX's service, and tell its port to all hosts."""
        host, port = self._address
        free, name = _next_free_port(host, port), f"[{host}]" if ":" in host else host
        self._service = _jax.coordination_service(f"{name}:{free}", self._first.processes, CLIENT_HEARTBEAT_S)
        for each in self._hosts.values():
            each.received_s = time.monotonic()
            each.send({"service": free})
        self._is_decided.set()

    def _refuse(self, reason: str, *late: Host) -> None:
        """Notify hosts of the reason why the job cannot start: those that have joined, and a late one."""
        self._refusal = self._refusal or reason
        hosts, self._hosts = [*self._hosts.values(), *late], {}
        for host in hosts:
            host.send({"error": self._refusal})
            host.writer.close()
            self._notified.add(host.greeting.index)
        self._is_decided.set()
        # A refused host may have an index out of range. Then it does not count as one of the hosts to notify.
        if self._notified.issuperset(range(self._first.processes)):
            self._all_are_notified.set()

    def _take_line(self, host: Host, line: bytes) -> None:
        host.received_s = time.monotonic()
        fields = join_rules.parse_line(line) if line else {}
        if fields.get("goodbye"):
            host.goodbye_s = host.received_s
        elif isinstance(text := fields.get("exception"), str) and text:
            host.exception_text, host.exception_s = printable(text), host.received_s

    def _take_end(self, host: Host) -> None:
        """Act on a connection that the host has closed, or on which it sent a line that is too long."""
        del self._hosts[host.greeting.index]
        if host.goodbye_s is not None:
            return
        if self._service is None:
            self._notified.add(host.greeting.index)
            self._refuse(f"{host} ended while the hosts were joining")
        else:
            self._fail_by_host(host, host.exception_text or "it was killed, or crashed, or its machine failed")
            self._send_final_error()

    def _fail_by_host(self, cause: Host, reason: str) -> None:
        """End the job because a host ended."""
        self._fail(f"{cause} ended: {reason}", cause.exception_text)

    def _fail(self, text: str, exception_text: str | None = None) -> None:
        """Make the final error, unless there is one; the hosts with the same exception as its cause get it first."""
        if self._ended_s is not None:
            return
        self._end()
        self._final_error = {"final_error": text, "exception": exception_text}
        # Hosts with the same exception as the cause end by themselves. The others get the final error when the cause
        # has ended.
        for host in self._hosts.values():
            if exception_text is not None and host.exception_text == exception_text:
                host.send(self._final_error)
        if exception_text is None:
            self._send_final_error()

    def _send_final_error(self) -> None:
        """Send the final error to all hosts that did not get it. The cause has printed its traceback, and has ended."""
        final_error, self._final_error = self._final_error, None
        if final_error is not None:
            for host in self._hosts.values():
                if final_error["exception"] is None or host.exception_text != final_error["exception"]:
                    host.send(final_error)

    def _end(self) -> None:
        """Stop listening, so that the next job can have the address."""
        self._ended_s = time.monotonic()
        self._server.close()

    def _tick(self, now_s: float) -> None:
        """Act on the clock."""
        if self._ended_s is None:
            self._watch(now_s)
        elif now_s - self._ended_s > self._limits.exit_s:
            self._send_final_error()
        if now_s - self._heartbeat_s > self._limits.beat_s:
            self._heartbeat_s = now_s
            for host in self._hosts.values():
                host.send(None)

    def _watch(self, now_s: float) -> None:
        hosts, limits = list(self._hosts.values()), self._limits
        failed = [(host.exception_s, host.greeting.index) for host in hosts if host.exception_s is not None]
        if failed and now_s - min(failed)[0] > limits.exception_s:
            first = self._hosts[min(failed)[1]]
            self._fail_by_host(first, first.exception_text or "")
            return
        for host in hosts:
            if (silent_s := now_s - host.received_s) > limits.silence_s:
                self._fail(f"{host} is frozen: it has sent nothing for {silent_s:.0f} s")
                return
        leaving = {index: host.goodbye_s for index, host in self._hosts.items() if host.goodbye_s is not None}
        if len(leaving) == len(hosts):
            self._end()
            for host in hosts:
                host.send({"done": True})
        elif leaving:
            self._warn_about_late_hosts(leaving, now_s)

    def _warn_about_late_hosts(self, leaving: dict[int, float], now_s: float) -> None:
        """Warn the hosts that still run that others wait for them, and end the job if they run for too long."""
        waited_s = now_s - min(leaving.values())
        staying = sorted(self._hosts.keys() - leaving.keys())
        text = (
            f"{listed_hosts(leaving)} of {self._first.processes} came to the end of the program {waited_s:.0f} s ago, "
            f"and {listed_hosts(staying)} still {'runs' if len(staying) == 1 else 'run'}. Do all hosts run the same "
            "script with the same arguments?"
        )
        if waited_s > self._limits.goodbye_s:
            self._fail(text)
        elif waited_s > self._limits.warning_s and not self._is_warned:
            self._is_warned = True
            for index in staying:
                self._hosts[index].send({"warning": text})


def _next_free_port(host: str, port: int) -> int:
    """Return a free port after another one. JAX's service ends the process if its port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [*range(port + 1, min(port + _MAX_PORTS, 65536)), 0]:
        with socket.socket(family) as probe, contextlib.suppress(OSError):
            probe.bind((host, candidate))
            return probe.getsockname()[1]
    raise OSError(f"{host} has no free port")


def main() -> None:
    """Serve the job that host 0 describes in one line on the standard input."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline())
    listener = socket.socket(fileno=settings["listener"])
    first, limits = Greeting(**settings["first"]), Limits(**settings["limits"])
    asyncio.run(Rendezvous(first, limits, listener.getsockname()[:2]).run(listener))
    os._exit(0)  # JAX's service would wait for its clients.


if __name__ == "__main__":
    main()
