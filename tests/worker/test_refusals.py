"""A worker that cannot be used: each reason has its own message, with the next command."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import anytpu as tpu
from anytpu.errors import SettingError, WorkerError
from anytpu.system.workers import parse_worker
from anytpu.worker import credentials
from anytpu.worker.session import Session
from worker.worker_process import WorkerProcess


def refusal(url: str) -> str:
    with pytest.raises(WorkerError) as caught:
        Session(parse_worker(url))  # pyright: ignore[reportArgumentType]
    return str(caught.value)


def test_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert refusal(f"grpc://127.0.0.1:{port}") == (
        f"no worker answers at 127.0.0.1:{port}: the connection was refused. Start one there with `anytpu worker "
        f"--port {port}`, and let the firewall pass that port"
    )


@pytest.mark.parametrize(("token", "reason"), [("w" * 40, "wrong token"), (None, "no token")])
def test_a_wrong_token(worker: WorkerProcess, token: str | None, reason: str):
    assert refusal(worker.with_field("token", token)) == (
        f"the worker at {worker.target} refused this client: {reason}. Use the line that `anytpu worker` printed at "
        "its first start, or set ANYTPU_WORKER_TOKEN to the worker's token: each start names the file that has it"
    )
    assert f"{reason.split()[0]} token" in worker.log.read_text()


def test_a_token_that_is_nearly_right(worker: WorkerProcess):
    token = str(parse_worker(worker.url).token)  # pyright: ignore[reportOptionalMemberAccess]
    other = {index: "A" if token[index] != "A" else "B" for index in (0, 16, 21, 32, len(token) - 1)}
    changed = [token[:index] + digit + token[index + 1 :] for index, digit in other.items()]
    for near in (*changed, token[:-1], token[:16], token[1:], f"{token}A", token.swapcase()):
        assert "refused this client: wrong token." in refusal(worker.with_field("token", near)), near


def test_a_certificate_that_is_nearly_right(worker: WorkerProcess):
    right = str(parse_worker(worker.url).fingerprint)  # pyright: ignore[reportOptionalMemberAccess]
    for index in (0, 15, 16, 31, 62, 63):
        near = right[:index] + ("1" if right[index] != "1" else "2") + right[index + 1 :]
        digits = 16 if index < 16 else 64
        assert (
            f"has another certificate than the address says: {right[:digits]}..., not {near[:digits]}.... If"
        ) in refusal(worker.with_field("cert", near))
    for short in (right[:-1], right[:32], f"{right}0"):
        with pytest.raises(SettingError):
            parse_worker(worker.with_field("cert", short))


def test_a_wrong_certificate(worker: WorkerProcess):
    address = parse_worker(worker.url)
    assert address is not None
    assert refusal(worker.with_field("cert", "0" * 64)) == (
        f"the worker at {worker.target} has another certificate than the address says: {str(address.fingerprint)[:16]}"
        "..., not 0000000000000000.... If its certificate was made anew, copy the line that `anytpu worker` prints. "
        "Otherwise somebody answers in its place"
    )


def test_a_plain_client(worker: WorkerProcess):
    assert refusal(worker.with_field("cert", None)) == (
        f"the worker at {worker.target} uses TLS, and the address has no certificate. Use the line that `anytpu "
        "worker` printed at its start"
    )


def test_another_version_of_the_wire(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("anytpu.worker.connection.PROTOCOL", "0")
    assert refusal(worker.url) == (
        f"the worker at {worker.target} has another version of the wire: it needs protocol 3, and this anytpu has "
        "protocol 0. Install the same release on both machines: pip install --upgrade anytpu"
    )


def test_one_session_at_a_time(worker: WorkerProcess):
    assert len(tpu.connect(worker.url).backend.cores) == 8
    assert refusal(worker.url) == (
        f"the worker at {worker.target} is in use by another program, and serves one at a time. Wait for that program, "
        "end it, or start a second worker on another port"
    )


def test_more_cores_than_there_are(worker: WorkerProcess):
    with pytest.raises(WorkerError) as caught:
        tpu.connect(worker.url, cores=9)
    assert str(caught.value) == f"the worker at {worker.target} has 8 cores, and 9 were asked for"


def test_the_token_is_in_no_text(worker: WorkerProcess):
    address = parse_worker(worker.url)
    assert address is not None
    assert address.token is not None
    assert address.token not in repr(address)
    assert address.token not in repr(tpu.TPUClusterResolver(worker.url).address)
    assert address.token not in worker.log.read_text()


def test_without_tls_and_token_on_loopback(tmp_path: Path):
    worker = WorkerProcess(tmp_path, "--insecure", "--tpu", "virtual", "--cores", "1")
    try:
        assert worker.url == worker.bare_url
        assert not (tmp_path / "anytpu").exists()
        session = Session(parse_worker(worker.url))  # pyright: ignore[reportArgumentType]
        assert session.description.kind == "virtual"
        session.close()
        text = refusal(f"{worker.url}?cert={'0' * 64}")
        assert text == (
            f"the worker at {worker.target} does not use TLS, and this connection needs it: the token and the data "
            "would be readable on the way. Start the worker without --insecure"
        )
    finally:
        worker.stop()


def test_an_expired_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(credentials, "VALID_DAYS", -0.5)
    paths = tmp_path / "cert.pem", tmp_path / "key.pem"
    credentials.read_or_create_certificate(*paths)
    worker = WorkerProcess(tmp_path, "--tpu", "virtual", "--tls-cert", str(paths[0]), "--tls-key", str(paths[1]))
    try:
        assert refusal(worker.url) == (
            f"the certificate of the worker at {worker.target} is not valid: certificate has expired. Remove the "
            "worker's certificate and start it again: it makes a new one"
        )
    finally:
        worker.stop()
