"""The address of a worker: read from text, and shown without its token."""

from __future__ import annotations

import pytest

from anytpu.errors import SettingError
from anytpu.system import TPUClusterResolver
from anytpu.system.workers import WorkerAddress, is_loopback, parse_worker, worker_target

PRINT = "ab" * 32


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("grpc://10.0.0.2:8470", "10.0.0.2:8470"),
        ("grpc://10.0.0.2", "10.0.0.2:8470"),
        ("grpc://[::1]:9000", "[::1]:9000"),
        ("localhost:9000", "localhost:9000"),
        ("localhost", None),
        ("http://localhost:80", None),
        ("v2-8", None),
        ("", None),
    ],
)
def test_worker_addresses(text: str, target: str | None):
    assert worker_target(text) == target


@pytest.mark.parametrize(
    "address",
    [
        WorkerAddress("box:8470"),
        WorkerAddress("[::1]:1", PRINT, "a-secret"),
        WorkerAddress("10.0.0.2:80", None, "a b&c=d/e"),
    ],
    ids=str,
)
def test_an_address_is_read_back(address: WorkerAddress):
    assert parse_worker(address.url(has_token=True)) == address
    without = parse_worker(address.url(has_token=False))
    assert without is not None
    assert (without.target, without.fingerprint, without.token) == (address.target, address.fingerprint, None)
    assert "secret" not in repr(address)


def test_the_token_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANYTPU_WORKER_TOKEN", " from-outside ")
    assert parse_worker("grpc://box") == WorkerAddress("box:8470", None, "from-outside")
    assert parse_worker("grpc://box?token=mine") == WorkerAddress("box:8470", None, "mine")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "grpc://box:1?key=2",
            "the address 'grpc://box:1' has the field 'key'; a worker's address has cert and token. Copy the line that "
            "`anytpu worker` printed",
        ),
        (
            "grpc://box:1?cert=xyz",
            "cert in the address 'grpc://box:1' must be the 64 hexadecimal digits of a certificate's SHA-256, not "
            "'xyz'. Copy the line that `anytpu worker` printed",
        ),
        ("grpc://box:0", "the port of the worker 'grpc://box:0' must be from 1 to 65535"),
        *(
            (
                f"{address}?token=1",
                f"{address!r} is the address of an IFRT proxy, such as a Pathways cluster, and anytpu does not connect "
                "to one. Start `anytpu worker` on the machine with the TPU, and use the line that it prints: "
                'tpu.connect("grpc://host:port?cert=...&token=...")',
            )
            for address in ("proxy://box:29000", "pathways://10.0.0.2:29000", "Proxy://")
        ),
    ],
)
def test_a_bad_address(url: str, message: str):
    for read in (parse_worker, TPUClusterResolver):
        with pytest.raises(SettingError) as caught:
            read(url)
        assert str(caught.value) == message


def test_an_address_in_the_environment_that_is_refused(bare_machine: pytest.MonkeyPatch):
    bare_machine.setenv("TPU_NAME", "proxy://box:29000")
    (reason, *_) = TPUClusterResolver("").reasons
    assert str(reason).startswith("TPU_NAME: 'proxy://box:29000' is the address of an IFRT proxy")


def test_encryption_is_off_on_loopback_only():
    assert [is_loopback(host) for host in ("localhost", "127.0.0.9", "::1", "10.0.0.2", "box")] == [1, 1, 1, 0, 0]
    assert not parse_worker("grpc://127.0.0.1:1").is_encrypted  # pyright: ignore[reportOptionalMemberAccess]
    assert WorkerAddress("127.0.0.1:1", PRINT).is_encrypted
    assert WorkerAddress("box:1").is_encrypted


def test_host_and_port():
    assert (WorkerAddress("[::1]:9").host, WorkerAddress("[::1]:9").port) == ("::1", 9)
