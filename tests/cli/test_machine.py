from __future__ import annotations

import socket

from anytpu.cli.machine import WORKER_PORTS, is_taken, look_at_machine, versions


def test_a_port_is_taken_while_something_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_taken(port)
    assert not is_taken(port)


def test_versions_of_what_is_installed():
    assert list(versions(["keras", "no-such-package"])) == ["keras"]


def test_this_machine():
    machine = look_at_machine()
    assert machine.memory_bytes is None or machine.memory_bytes > 0
    assert machine.disk_bytes > 0
    assert machine.versions["anytpu"]
    assert set(machine.ports_taken) <= set(WORKER_PORTS)
    assert machine.settings["KERAS_BACKEND"] == "jax"
