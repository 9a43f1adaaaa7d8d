"""The rendezvous of a job: a process, started by host 0, at which all hosts join and which watches them.

Idea: each host keeps one connection to it. While the hosts join it compares their greetings, and then starts JAX's
coordination service. After that each host sends a heartbeat and says goodbye at its end. A host that ends without a
goodbye, or is silent, ends the job: the others get one verdict that names it. The process is no host's own, so the
death of host 0 is told too.

Rule: one thread and no waiting. A line of a stranger is never more than a closed connection. The process ends when all
connections are closed, and soon after a verdict in any case.

Lines of a host: a `Greeting`; then empty lines (heartbeats), `{"words": text}` (its exception), `{"goodbye": true}`.
Lines to a host while it joins: `{"error": text}` or `{"service": port}`. Later: empty lines, `{"notice": text}`,
`{"done": true}`, and the verdict with the words of its cause.
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
from anytpu.system import roll
from anytpu.system.roll import CLIENT_HEARTBEAT_S, Greeting, Limits, hosts

_TICK_S = 0.1
_MAX_STRANGERS = 256
_MAX_PORTS = 64


@dataclasses.dataclass(eq=False)
class Guest:
    """One connection.

    Attributes:
        socket: the connection.
        since_s: time of its start.
        heard_s: time of the last line.
        received: bytes of the line that is not complete.
        greeting: greeting of the host; None for a connection that has not sent one.
        words: the exception that ended the host, as text, and
        words_s: its time.
        goodbye_s: time of its goodbye.
    """

    socket: socket.socket
    since_s: float
    heard_s: float
    received: bytes = b""
    greeting: Greeting | None = None
    words: str | None = None
    words_s: float | None = None
    goodbye_s: float | None = None

    def send(self, message: dict[str, Any] | None) -> None:
        """Send a line, or a heartbeat. A host that does not read gets nothing."""
        with contextlib.suppress(OSError):
            self.socket.send(roll.line_of(message))


class Rendezvous:
    """The connections of a job, and what they have told.

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
        self._guests: list[Guest] = []
        self._began_s = self._beaten_s = time.monotonic()
        self._refusal: str | None = None
        self._told: set[int] = set()
        self._is_joined = self._is_noticed = False
        self._ended_s: float | None = None
        self._verdict: dict[str, Any] | None = None
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
                elif key.data in self._guests:
                    self._receive(key.data)
            self._tick(time.monotonic())

    def _hosts(self) -> dict[int, Guest]:
        return {guest.greeting.index: guest for guest in self._guests if guest.greeting}

    def _is_over(self) -> bool:
        if self._is_joined:
            return not self._hosts()
        # A refused host may have an index out of range. It is none of those that are waited for.
        return self._refusal is not None and self._told.issuperset(range(self._first.processes))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept() if self._listener else (None, None)
            if connection is None:
                return
            if sum(guest.greeting is None for guest in self._guests) >= _MAX_STRANGERS:
                connection.close()
                return
            connection.setblocking(False)
            guest = Guest(connection, time.monotonic(), time.monotonic())
            self._guests.append(guest)
            self._selector.register(connection, selectors.EVENT_READ, guest)

    def _receive(self, guest: Guest) -> None:
        try:
            received = guest.socket.recv(roll.MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._lose(guest)
            return
        guest.heard_s = time.monotonic()
        *lines, guest.received = (guest.received + received).split(b"\n")
        for line in lines:
            # A line may end the connection. Its further lines are not read then.
            if guest in self._guests:
                self._read(guest, line)
        if len(guest.received) > roll.MAX_LINE_BYTES:
            self._lose(guest)

    def _read(self, guest: Guest, line: bytes) -> None:
        """Act on one line."""
        if guest.greeting is None:
            greeting = roll.parse_greeting(line)
            if greeting is None:
                self._close(guest)
            else:
                self._greet(guest, greeting)
        elif line:
            with contextlib.suppress(ValueError, AttributeError):
                fields = json.loads(line)
                if fields.get("goodbye"):
                    guest.goodbye_s = guest.heard_s
                elif fields.get("words"):
                    guest.words = roll.printable(str(fields["words"]))
                    guest.words_s = guest.heard_s

    def _greet(self, guest: Guest, greeting: Greeting) -> None:
        if not roll.has_token(greeting, self._first.token):
            guest.send({"error": "this host has another ANYTPU_JOB_TOKEN than host 0, or none"})
            self._close(guest)
            return
        taken = {index: host.greeting.name for index, host in self._hosts().items() if host.greeting}
        reason = self._refusal or roll.refusal(greeting, self._first, taken)
        if self._is_joined:
            guest.send({"error": f"a job of {self._first.processes} hosts runs there already: {reason or 'it ends'}"})
            self._close(guest)
            return
        guest.greeting = greeting
        if reason:
            self._refuse(reason)
        elif len(self._hosts()) == self._first.processes:
            self._join()

    def _join(self) -> None:
        port = self._start_service(self._first.processes)
        self._is_joined = True
        for guest in self._guests:
            guest.heard_s = time.monotonic()
            guest.send({"service": port} if guest.greeting else None)

    def _refuse(self, reason: str) -> None:
        """Tell all hosts why the job cannot start: those that are here, and later those that come."""
        if self._refusal is None:
            self._refusal, self._ended_s = reason, time.monotonic()
        for guest in list(self._guests):
            if guest.greeting:
                guest.send({"error": self._refusal})
                self._told.add(guest.greeting.index)
                self._close(guest)

    def _lose(self, guest: Guest) -> None:
        """Act on a connection that was closed by the other side."""
        self._close(guest)
        greeting = guest.greeting
        if greeting is None or guest.goodbye_s is not None:
            return
        if not self._is_joined:
            self._told.add(greeting.index)
            self._refuse(f"{self._named(guest)} ended while the hosts were joining")
        else:
            self._judge(guest, guest.words or "it was killed, or crashed, or its machine failed")
            self._publish()

    def _judge(self, cause: Guest, reason: str) -> None:
        """End the job because a host ended."""
        self._end_job(f"{self._named(cause)} ended: {reason}", cause.words)

    def _end_job(self, text: str, words: str | None) -> None:
        """Make the verdict, unless there is one; the hosts with the same exception as its cause get it first."""
        if self._ended_s is None:
            self._ended_s = time.monotonic()
            self._stop_listening()
            self._verdict = {"verdict": text, "words": words}
            # Hosts with the same exception as the cause end by themselves. The others get the verdict when the cause
            # has ended.
            for guest in self._hosts().values():
                if words is not None and guest.words == words:
                    guest.send(self._verdict)
            if words is None:
                self._publish()

    def _publish(self) -> None:
        """Send the verdict to all hosts that did not get it. The cause has printed its traceback, and has ended."""
        verdict, self._verdict = self._verdict, None
        if verdict is not None:
            for guest in self._hosts().values():
                if verdict["words"] is None or guest.words != verdict["words"]:
                    guest.send(verdict)

    def _tick(self, now_s: float) -> None:
        """Act on the clock."""
        limits = self._limits
        for guest in [guest for guest in self._guests if guest.greeting is None]:
            if now_s - guest.since_s > limits.greeting_s:
                self._close(guest)
        if self._ended_s is not None and now_s - self._ended_s > limits.verdict_s:
            self._end()
        elif self._verdict is not None and self._ended_s is not None and now_s - self._ended_s > limits.exit_s:
            self._publish()
        elif not self._is_joined:
            if self._refusal is None and now_s - self._began_s > limits.join_s:
                missing = set(range(self._first.processes)) - self._hosts().keys()
                self._refuse(roll.missing_text(missing, self._first.processes, limits.join_s))
        elif self._ended_s is None:
            self._watch(now_s)
        if now_s - self._beaten_s > limits.beat_s:
            self._beaten_s = now_s
            for guest in self._hosts().values():
                guest.send(None)

    def _watch(self, now_s: float) -> None:
        present, limits = self._hosts(), self._limits
        failed = [(guest.words_s, index) for index, guest in present.items() if guest.words_s is not None]
        if failed and now_s - min(failed)[0] > limits.words_s:
            first = present[min(failed)[1]]
            self._judge(first, first.words or "")
            return
        for guest in present.values():
            if (silent_s := now_s - guest.heard_s) > limits.silence_s:
                self._end_job(f"{self._named(guest)} is frozen: it has sent nothing for {silent_s:.0f} s", None)
                return
        leaving = {index: guest.goodbye_s for index, guest in present.items() if guest.goodbye_s is not None}
        if leaving and len(leaving) == len(present):
            self._ended_s = now_s
            self._stop_listening()
            for guest in present.values():
                guest.send({"done": True})
        elif leaving:
            self._hurry(present, leaving, now_s)

    def _hurry(self, present: dict[int, Guest], leaving: dict[int, float], now_s: float) -> None:
        """Tell the hosts that still run who waits for them, and end the job if they run for too long."""
        waited_s = now_s - min(leaving.values())
        staying = sorted(present.keys() - leaving.keys())
        text = (
            f"{hosts(leaving)} of {self._first.processes} came to the end of the program {waited_s:.0f} s ago, and "
            f"{hosts(staying)} still {'runs' if len(staying) == 1 else 'run'}. Do all hosts run the same script with "
            "the same arguments?"
        )
        if waited_s > self._limits.goodbye_s:
            self._end_job(text, None)
        elif waited_s > self._limits.notice_s and not self._is_noticed:
            self._is_noticed = True
            for index in staying:
                present[index].send({"notice": text})

    def _named(self, guest: Guest) -> str:
        assert guest.greeting is not None
        return f"host {guest.greeting.index} of {self._first.processes} ({guest.greeting.name})"

    def _close(self, guest: Guest) -> None:
        self._guests.remove(guest)
        self._selector.unregister(guest.socket)
        guest.socket.close()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _end(self) -> None:
        """Close everything, so that `run` returns."""
        self._is_joined = True
        for guest in list(self._guests):
            self._close(guest)


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
