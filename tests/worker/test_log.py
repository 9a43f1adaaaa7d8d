"""Words of strangers: none of them begins a line of a log or controls a terminal, on both sides of a connection."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from anytpu.system.workers import WorkerAddress
from anytpu.worker import log
from anytpu.worker.session import describe_worker, worker_status
from anytpu.worker.wire import SERVICE, messages
from forked import python
from worker.strangers import PREFACE, SETTINGS, call_of, encrypted, frame
from worker.worker_process import WorkerProcess

FORGED = "\n2026-11-28 10:00:00,000 session of ipv4:10.0.0.1:5 begins\n\x1b[2J\x07\x9b1m\u202e"
ESCAPED = r"\n2026-11-28 10:00:00,000 session of ipv4:10.0.0.1:5 begins\n\x1b[2J\x07\x9b1m\u202e"
GOAWAY = 7


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    started = WorkerProcess(tmp_path_factory.mktemp("quiet"), "--tpu", "virtual", "--cores", "1", "--memory-limit", "1")
    try:
        yield started
    finally:
        started.stop()


@contextlib.contextmanager
def impostor(answer: Any) -> Iterator[WorkerAddress]:
    """Serve in place of a worker, with one answer to each question."""
    server: Any = grpc.server(ThreadPoolExecutor(2))
    handler: Any = grpc.unary_unary_rpc_method_handler(answer)
    service: Any = grpc.method_handlers_generic_handler(SERVICE, dict.fromkeys(("Describe", "Status"), handler))
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield WorkerAddress(f"127.0.0.1:{port}")
    finally:
        server.stop(None).wait()


def port_of(worker: WorkerProcess) -> int:
    return int(worker.target.rpartition(":")[2])


def test_strangers_do_not_write_the_log(quiet: WorkerProcess):
    before = quiet.log.read_text()
    for opening in (PREFACE + frame(SETTINGS, 0, 0, b""), f"GET {FORGED} HTTP/1.1".encode(), b""):
        with encrypted(port_of(quiet)) as connection:
            connection.sendall(opening + frame(GOAWAY, 0, 0, bytes(4) + (2).to_bytes(4, "big") + FORGED.encode()))
            connection.recv(100)
    for plain in (b"\x16\x03\x01" + b"\xff" * 100, FORGED.encode(), b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port_of(quiet))) as connection:
            connection.sendall(plain)
            connection.recv(100)
    with encrypted(port_of(quiet)) as connection:
        connection.sendall(call_of(f"{SERVICE}/Describe", 1, "\x1b[31m wrong"))
        connection.recv(100)
    lines = quiet.log.read_text().removeprefix(before).splitlines()
    assert all(re.fullmatch(r"[\d-]+ [\d:,]+ refused ipv4:[\d.:]+: wrong token", line) for line in lines), lines


def test_refused_calls_write_a_bounded_number_of_lines(quiet: WorkerProcess):
    for _ in range(3 * log.MAX_EQUAL):
        with encrypted(port_of(quiet)) as connection:
            connection.sendall(call_of(f"{SERVICE}/Describe", 1))
            connection.recv(100)
    refused = [line for line in quiet.log.read_text().splitlines() if "refused" in line and "token" in line]
    assert len(refused) <= log.MAX_EQUAL


def logged(monkeypatch: pytest.MonkeyPatch, period_s: float) -> tuple[logging.Logger, io.StringIO]:
    """Return a logger that writes as a worker's does, and its text."""
    text, logger = io.StringIO(), logging.Logger("probe")
    monkeypatch.setattr(log, "PERIOD_S", period_s)
    logger.addHandler(log.log_handler(text))
    return logger, text


def test_lines_that_are_left_out_are_counted(monkeypatch: pytest.MonkeyPatch):
    logger, text = logged(monkeypatch, 0.2)
    for index in range(50):
        logger.warning("refused %s", index)
    logger.warning("another kind")
    while "left out" not in text.getvalue():
        time.sleep(0.05)
    lines = [line.split(" ", 2)[2] for line in text.getvalue().splitlines()]
    assert lines[:-1] == [*(f"refused {index}" for index in range(20)), "another kind"]
    assert lines[-1] == "left out in 0.2 s: 30 lines like 'refused 0'"


def test_a_line_of_the_log_is_one_line(monkeypatch: pytest.MonkeyPatch):
    logger, text = logged(monkeypatch, 60.0)
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        logger.exception("refused %s", error)
    first, *traceback = text.getvalue().rstrip("\n").split("\n")
    assert first.endswith(f"refused {ESCAPED}")
    assert all(line.startswith("    ") and line.isprintable() for line in traceback)


ASK = """
import sys
from anytpu.errors import WorkerError
from anytpu.system.workers import WorkerAddress
from anytpu.worker.session import describe_worker
for target in sys.argv[1:]:
    try:
        describe_worker(WorkerAddress(target))
    except WorkerError as error:
        print(error)
"""


def refusal_of(code: str) -> Any:
    """Return an answer of an impostor that ends a call with a status and a forged text."""
    start = {"ABORTED": "memory ", "RESOURCE_EXHAUSTED": "queue "}.get(code, "")
    return lambda _, context: context.abort(getattr(grpc.StatusCode, code), start + FORGED)


class GoesAway(socketserver.BaseRequestHandler):
    """Ends each connection with a forged reason. gRPC prints the reason, if it prints."""

    def handle(self) -> None:
        reason = bytes(4) + (2).to_bytes(4, "big") + FORGED.encode()
        self.request.sendall(frame(SETTINGS, 0, 0, b"") + frame(GOAWAY, 0, 0, reason))
        while self.request.recv(4096):
            pass


def test_a_worker_does_not_write_on_the_terminal_of_a_client():
    """In a process of its own: gRPC reads how much it may print when a process imports it first."""
    codes = ["UNAUTHENTICATED", "FAILED_PRECONDITION", "ABORTED", "RESOURCE_EXHAUSTED", "INTERNAL"]
    with contextlib.ExitStack() as stack:
        leaving = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), GoesAway))
        stack.callback(leaving.shutdown)
        threading.Thread(target=leaving.serve_forever).start()
        targets = [stack.enter_context(impostor(refusal_of(code))).target for code in codes]
        targets.append(f"127.0.0.1:{leaving.server_address[1]}")
        client = subprocess.run([*python(), "-c", ASK, *targets], capture_output=True, text=True)
    assert client.stderr == ""
    lines = client.stdout.splitlines()
    assert len(lines) == len(targets)
    assert all(line.isprintable() and r"\x1b[2J" in line for line in lines)


def test_texts_of_messages_are_escaped():
    status = messages().Status(sessions=[messages().SessionStatus(client=FORGED)], max_sessions=1)
    described = messages().Description(name=FORGED, cores=[messages().Core(platform=FORGED)])
    with impostor(lambda *_: status.SerializeToString()) as address:
        assert worker_status(address).sessions[0].client == ESCAPED
    with impostor(lambda *_: described.SerializeToString()) as address:
        answer = describe_worker(address)
    assert (answer.name, answer.cores[0].platform) == (ESCAPED, ESCAPED)
