"""The state of a worker: `anytpu worker status`, metrics for Prometheus, and grpc.health."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from anytpu.worker.connection import open_channel
from anytpu.worker.session import Session
from forked import python
from worker.strangers import is_over
from worker.test_faults import address_of, works
from worker.worker_process import WorkerProcess


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("watched")
    words = ("--tpu", "virtual", "--cores", "2", "--sessions", "queue", "--metrics-port", "0")
    started = WorkerProcess(folder, *words)
    try:
        yield started
    finally:
        started.stop()


def shown_status(url: str) -> subprocess.CompletedProcess[str]:
    command = [*python(), "-m", "anytpu", "worker", "status", url]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def metrics(worker: WorkerProcess) -> str:
    found = re.search(r"metrics at (http://\S+)", worker.log.read_text())
    assert found is not None
    with urllib.request.urlopen(found[1], timeout=20) as answer:
        return answer.read().decode()


def test_a_session_is_listed(watched: WorkerProcess):
    session = Session(address_of(watched))
    try:
        works(session)
        lines = shown_status(watched.url).stdout.splitlines()
        assert lines[0] == "1 of 1 session in use"
        assert lines[1].split() == ["client", "for", "connection", "received", "sent", "memory"]
        assert re.fullmatch(r"ipv4:127\.0\.0\.1:\d+ +[\d.]+ m?s +connected +[\d.]+ KiB +\d+ B +[\d.]+ MiB", lines[2])
        assert "anytpu_worker_sessions 1.0" in metrics(watched)
    finally:
        session.close()
    assert 'anytpu_worker_sessions_ended_total{reason="closed"} 1.0' in metrics(watched)


def test_a_program_waits_for_its_turn(watched: WorkerProcess):
    first = Session(address_of(watched))
    begun = threading.Event()

    def wait() -> None:
        second = Session(address_of(watched))
        begun.set()
        works(second)
        second.close()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not begun.wait(7)  # Longer than the five seconds after which others are refused.
    first.close()
    waiting.join(60)
    assert begun.is_set()


WAIT = """
import sys, threading
from anytpu.errors import WorkerError
from anytpu.system.workers import parse_worker
from anytpu.worker.session import Session

def wait():
    try:
        Session(parse_worker(sys.argv[1]))
    except WorkerError as error:
        print(error, flush=True)

for _ in range(34):
    threading.Thread(target=wait).start()
"""


def test_too_many_programs_wait(watched: WorkerProcess):
    first = Session(address_of(watched))
    with subprocess.Popen([*python(), "-c", WAIT, watched.url], stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        texts = [waiting.stdout.readline() for _ in range(2)]
        waiting.terminate()  # None of the others gets its turn, which would start 32 programs one after the other.
    first.close()
    assert texts == 2 * [
        f"the worker at {watched.target} is in use, and 32 programs wait for their turn, which is the maximum. Wait "
        "until some of them ended, or start a second worker on another port\n"
    ]


def test_silent_connections_to_the_metrics(watched: WorkerProcess):
    """They take no thread each, and keep nobody from the metrics."""
    port = int(re.findall(r"metrics at http://\S+:(\d+)/", watched.log.read_text())[0])
    threads = Path(f"/proc/{watched.process.pid}/task")
    before = len(list(threads.iterdir()))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(300)]
        silent[-1].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert "anytpu_worker_sessions 0.0" in metrics(watched)
        assert len(list(threads.iterdir())) < before + 8
        assert is_over(silent[0])
    with socket.create_connection(("127.0.0.1", port)) as endless:
        with contextlib.suppress(OSError):
            endless.sendall(b"x" * 2**20)
        assert is_over(endless)
    assert "anytpu_worker_sessions 0.0" in metrics(watched)


def test_status_of_a_worker_that_is_not_there(tmp_path: Path):
    shown = shown_status("grpc://127.0.0.1:9")
    assert shown.returncode == 2
    assert shown.stderr.startswith("anytpu: no worker answers at 127.0.0.1:9: the connection was refused.")
    shown = shown_status("box")
    assert shown.stderr == (
        "anytpu: anytpu worker status needs the address of a worker: anytpu worker status "
        "grpc://host:port?cert=...&token=...\n"
    )


def test_health(watched: WorkerProcess):
    with open_channel(address_of(watched)) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/grpc.health.v1.Health/Watch")(b"", timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED  # pyright: ignore[reportAttributeAccessIssue]
