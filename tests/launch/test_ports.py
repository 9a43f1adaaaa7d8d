from __future__ import annotations

import socket

import pytest

from anytpu.launch.ports import _PORTS, free_port, is_taken


def test_a_free_port_is_below_those_of_outgoing_connections():
    port = free_port()
    assert port in _PORTS and not is_taken(port)


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")]
)
def test_a_port_that_is_taken(family: socket.AddressFamily, address: str):
    with socket.socket(family) as server:
        try:
            server.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no {address}")
        server.listen()
        port = server.getsockname()[1]
        assert is_taken(port)
    assert not is_taken(port)
