"""The process at which hosts join, with hosts that are sockets of the test: each final error and its text."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anytpu import _jax
from anytpu.errors import HostsError
from anytpu.system import joining
from anytpu.system.join_rules import Greeting, Limits
from anytpu.system.rendezvous import Rendezvous

ADDRESS = ("127.0.0.1", 0)
VERSIONS = {"jax": "1"}
SHORT = Limits(
    join_s=60.0, greeting_s=1.0, beat_s=0.2, silence_s=1.5, exception_s=0.5, final_error_s=2.0, goodbye_s=60.0
)


class Host:
    """A connection of the test to a rendezvous."""

    def __init__(self, target: tuple[str, int], index: int, processes: int, **changes: Any) -> None:
        self.socket = socket.create_connection(target, timeout=60.0)
        greeting = Greeting(index, processes, changes.pop("name", f"box{index}"), VERSIONS)
        self.socket.sendall(dataclasses.replace(greeting, **changes).line())
        self.lines = self.socket.makefile("rb")
        self.is_running = False

    def send(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def beat(self) -> None:
        self.socket.sendall(b"\n")

    def read(self) -> dict[str, Any] | None:
        """Return the next message; None at the end of the connection. Each heartbeat of a running job is answered."""
        for line in self.lines:
            if line.strip():
                message = json.loads(line)
                self.is_running = self.is_running or "service" in message
                return message
            if self.is_running:
                self.beat()
        return None

    def end(self) -> None:
        self.lines.close()
        self.socket.close()


def start(processes: int, limits: Limits = SHORT, token: str | None = None) -> tuple[str, int]:
    first = Greeting(0, processes, "box0", VERSIONS, token)
    return joining._start_rendezvous("127.0.0.1:0", ADDRESS, first, limits)


@pytest.fixture
def joined() -> Iterator[list[Host]]:
    target = start(3)
    hosts = [Host(target, index, 3) for index in range(3)]
    ports = [host.read() for host in hosts]
    assert ports[0] is not None
    assert target[1] < ports[0]["service"]
    assert ports == [ports[0]] * 3
    yield hosts
    for host in hosts:
        host.end()


def test_a_killed_host(joined: list[Host]):
    joined[1].end()
    final_error = {
        "final_error": "host 1 of 3 (box1) ended: it was killed, or crashed, or its machine failed",
        "exception": None,
    }
    assert [joined[0].read(), joined[2].read()] == [final_error, final_error]


def test_the_exception_of_a_host(joined: list[Host]):
    joined[2].send(exception="ValueError: no rows")
    final_error = {"final_error": "host 2 of 3 (box2) ended: ValueError: no rows", "exception": "ValueError: no rows"}
    assert joined[2].read() == final_error
    joined[2].end()
    assert [joined[0].read(), joined[1].read()] == [final_error, final_error]


def test_the_killed_host_is_the_cause_of_an_exception_just_before(joined: list[Host]):
    joined[2].send(exception="ValueError: Gloo all-reduce failed")
    joined[0].end()
    final_error = {
        "final_error": "host 0 of 3 (box0) ended: it was killed, or crashed, or its machine failed",
        "exception": None,
    }
    assert [joined[1].read(), joined[2].read()] == [final_error, final_error]


def test_a_frozen_host(joined: list[Host]):
    final_error = joined[0].read(), joined[2].read()  # Host 1 sends no heartbeats.
    text = "host 1 of 3 (box1) is frozen: it has sent nothing for 2 s"
    assert final_error == ({"final_error": text, "exception": None}, {"final_error": text, "exception": None})


def test_goodbyes_wait_for_one_another(joined: list[Host]):
    for host in joined:
        host.send(goodbye=True)
    assert [host.read() for host in joined] == [{"done": True}] * 3


def test_a_signal_to_each_process_of_a_job_leaves_the_rendezvous(joined: list[Host]):
    children = [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    found = [pid for pid in children if b"anytpu.system.rendezvous" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    for pid in found:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert found
    test_goodbyes_wait_for_one_another(joined)


def test_a_second_job_at_the_same_address(joined: list[Host]):
    target = joined[0].socket.getpeername()
    late = Host(target, 1, 3)
    assert late.read() == {
        "error": "a job of 3 hosts runs there already: two hosts have the index 1: box1 and box1. Start each host with "
        "its own index, 0 to 2"
    }
    late.end()
    joined[0].end()
    assert joined[1].read() is not None
    for host in joined:
        host.end()
    # The address is free again at once.
    with joining._listener(f"127.0.0.1:{target[1]}", target):
        pass


def test_hosts_that_do_not_end():
    target = start(2, dataclasses.replace(SHORT, silence_s=60.0, warning_s=0.3, goodbye_s=1.5))
    hosts = [Host(target, index, 2) for index in range(2)]
    assert all(host.read() for host in hosts)
    hosts[1].send(goodbye=True)
    text = r"host 1 of 2 came to the end of the program \d s ago, and host 0 still runs\. Do all hosts run the same "
    for key in ("warning", "final_error"):
        message = hosts[0].read()
        assert message is not None
        assert re.fullmatch(text + r"script with the same arguments\?", message[key])
    for host in hosts:
        host.end()


def test_a_host_that_does_not_fit():
    """All hosts get the reason, also one that comes later; tests/system/test_join_rules.py has the other reasons."""
    target = start(3)
    hosts = [Host(target, 0, 3), Host(target, 1, 4)]
    text = "host 1 (box1) was started for 4 hosts, and host 0 (box0) for 3. Start every host with the same number of "
    message = {"error": f"{text}processes"}
    assert [host.read() for host in hosts] == [message] * 2
    late = Host(target, 2, 3)
    assert late.read() == message
    for host in [*hosts, late]:
        host.end()


def test_a_host_with_an_index_out_of_range_is_not_counted():
    """A late host is notified of the refusal, although as many connections as hosts have been notified."""
    target = start(3)
    message = {"error": "the index of a host (box3) is 3; it must be 0 to 2"}
    hosts = [Host(target, index, 3) for index in (0, 3, 1)]
    assert [host.read() for host in hosts] == [message] * 3
    assert hosts[-1].read() is None
    late = Host(target, 2, 3)
    assert late.read() == message
    for host in [*hosts, late]:
        host.end()


def test_a_host_that_ends_while_others_join():
    target = start(3)
    first, second = Host(target, 0, 3), Host(target, 1, 3)
    second.end()
    assert first.read() == {"error": "host 1 of 3 (box1) ended while the hosts were joining"}
    first.end()


def test_two_hosts_that_end_at_the_same_moment_while_others_join():
    """The rendezvous goes on for those that come later."""
    target = start(3)
    for host in [Host(target, index, 3) for index in range(2)]:
        host.end()
    late = Host(target, 2, 3)
    message = late.read()
    assert message in [{"error": f"host {i} of 3 (box{i}) ended while the hosts were joining"} for i in range(2)]
    late.end()


def test_hosts_that_do_not_come():
    target = start(4, dataclasses.replace(SHORT, join_s=1.0))
    hosts = [Host(target, index, 4) for index in (0, 3)]
    error = "hosts 1 and 2 of 4 did not come within 1 s. Start every host with the same address, and each with its own "
    assert [host.read() for host in hosts] == [{"error": f"{error}index"}] * 2
    for host in hosts:
        host.end()


def test_unauthenticated_connections_are_closed_and_change_nothing():
    target = start(2, token="secret")
    others = []
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 10_000, b"{}\n", b"half of a line"):
        other = socket.create_connection(target, timeout=60.0)
        other.sendall(greeting)
        others.append(other)
    wrong = Host(target, 1, 2, token="guess")
    assert wrong.read() == {"error": "this host has another ANYTPU_JOB_TOKEN than host 0, or none"}
    assert wrong.read() is None
    for other in others:
        with contextlib.suppress(ConnectionResetError):
            assert other.recv(100).strip() == b""
        other.close()
    hosts = [Host(target, index, 2, token="secret") for index in range(2)]
    assert all("service" in (host.read() or {}) for host in hosts)
    for host in [*hosts, wrong]:
        host.end()


def test_silent_connections_do_not_keep_hosts_away():
    target = start(2)
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection(target, timeout=60.0))
        hosts = [Host(target, index, 2) for index in range(2)]
        assert all("service" in (host.read() or {}) for host in hosts)
    for host in hosts:
        host.end()


@pytest.mark.parametrize(
    "line", [b"[" * 4000, b'{"exception": ' + b"[" * 900 + b"]" * 900 + b"}", b"\xff", b"7", b"[{}]"]
)
def test_a_line_of_another_form_changes_nothing(joined: list[Host], line: bytes):
    joined[1].socket.sendall(line + b"\n")
    for host in joined:
        host.send(goodbye=True)
    assert [host.read() for host in joined] == [{"done": True}] * 3


def test_a_token_with_a_lone_surrogate_is_wrong():
    target = start(2, token="secret")
    greeting = Greeting(1, 2, "box1", VERSIONS, "guess").line().replace(b"guess", b"\\ud800")
    with socket.create_connection(target, timeout=60.0) as other, other.makefile("rb") as lines:
        other.sendall(greeting)
        refusal = {"error": "this host has another ANYTPU_JOB_TOKEN than host 0, or none"}
        assert [json.loads(line) for line in lines if line.strip()] == [refusal]
    hosts = [Host(target, index, 2, token="secret") for index in range(2)]
    assert all("service" in (host.read() or {}) for host in hosts)
    for host in hosts:
        host.end()


def test_a_port_in_use():
    with socket.create_server(ADDRESS) as other:
        port = other.getsockname()[1]
        with pytest.raises(HostsError) as caught:
            joining._listener(f"127.0.0.1:{port}", ("127.0.0.1", port))
    assert str(caught.value) == (
        f"host 0 cannot listen at 127.0.0.1:{port}: port {port} is in use. Give all hosts another port, or end the "
        "program that uses it"
    )


def test_an_address_of_another_machine():
    with pytest.raises(HostsError) as caught:
        joining._listener("192.0.2.1:8476", ("192.0.2.1", 8476))
    assert str(caught.value) == (
        f"host 0 cannot listen at 192.0.2.1:8476: this machine ({socket.gethostname()}) does not have that address. "
        "Give all hosts the address of host 0"
    )


def test_a_service_that_does_not_start_ends_the_rendezvous_at_once(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: Any) -> None:
        raise RuntimeError("no service")

    async def join(listener: socket.socket) -> None:
        run = asyncio.ensure_future(Rendezvous(first, SHORT, ADDRESS).run(listener))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(first.line())
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        await run

    monkeypatch.setattr(_jax, "coordination_service", fails)
    first = Greeting(0, 1, "box0", VERSIONS)
    with socket.create_server(ADDRESS) as listener, pytest.raises(RuntimeError, match="no service"):
        asyncio.run(join(listener))
