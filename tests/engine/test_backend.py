"""`open` and `backend_of`: a backend is found by the kind of its address, opened once, closed with its system."""

from __future__ import annotations

import contextlib
import threading

import pytest

from anytpu import engine
from anytpu.engine import backend
from anytpu.engine.twin import TwinBackend
from anytpu.engine.virtual import VirtualBackend
from anytpu.errors import BackendError
from anytpu.system import TPUClusterResolver
from anytpu.system.cores import Address
from anytpu.system.lifecycle import initialize_tpu_system, running_system, shutdown_tpu_system
from anytpu.system.topologies import row_of_cores

CORES = row_of_cores(2).cores


@pytest.mark.parametrize(("kind", "cls"), [("virtual", VirtualBackend), ("twin", TwinBackend)])
def test_by_kind(kind: str, cls: type):
    backend = engine.open(Address(kind, 2), CORES)
    assert type(backend) is cls
    assert backend.cores == CORES


def test_no_such_kind():
    with pytest.raises(BackendError) as caught:
        engine.open(Address("abacus", 2), CORES)
    assert str(caught.value) == (
        "no backend opens a system of kind 'abacus'; the installed kinds are grpc, local, twin, virtual"
    )


def test_once_for_each_system():
    system = running_system(Address("twin", 2))
    assert engine.backend_of(system) is engine.backend_of(system)
    assert engine.backend_of(system) is not engine.backend_of(running_system(Address("twin", 3)))
    assert len(engine.backend_of(running_system(Address("twin", 3))).cores) == 3


def test_once_for_two_threads(monkeypatch: pytest.MonkeyPatch):
    plain, both, opened = backend.open, threading.Barrier(2), []

    def slow(*given):
        opened.append(given)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.3)
        return plain(*given)

    monkeypatch.setattr(backend, "open", slow)
    system = running_system(Address("twin", 6))
    threads = [threading.Thread(target=engine.backend_of, args=(system,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [(system.address, system.topology.cores)]


def test_another_one_after_a_reset(monkeypatch: pytest.MonkeyPatch):
    closed: list[TwinBackend] = []
    monkeypatch.setattr(TwinBackend, "close", lambda backend: closed.append(backend))
    resolver = TPUClusterResolver.from_address(Address("twin", 5))
    first = engine.backend_of(running_system(resolver.address))
    initialize_tpu_system(resolver, reset=True)
    assert closed == [first]
    second = engine.backend_of(running_system(resolver.address))
    assert second is not first
    shutdown_tpu_system(resolver)
    shutdown_tpu_system(resolver)
    assert closed == [first, second]
