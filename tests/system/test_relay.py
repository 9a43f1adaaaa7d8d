"""The relay between JAX's client and the coordination service."""

from __future__ import annotations

import socket

import pytest

from anytpu.system.relay import Relay


def connect(relay: Relay) -> socket.socket:
    host, _, port = relay.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30.0)


def test_bytes_pass_and_the_end_of_the_service_does_not():
    with socket.create_server(("127.0.0.1", 0)) as server, connect(Relay(server.getsockname()[:2])) as client:
        service, _ = server.accept()
        client.sendall(b"question")
        assert service.recv(100) == b"question"
        service.sendall(b"answer")
        assert client.recv(100) == b"answer"
        service.close()
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(100)


def test_a_service_that_is_gone_looks_silent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = server.getsockname()[:2]
    with connect(Relay(target)) as client:
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(100)
