"""The battery of every backend, on a worker in another process, with TLS and a token."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from anytpu.engine import Backend, backend_of
from anytpu.engine.foreign import foreign_kernels, without_foreign_kernels
from anytpu.system import TPUClusterResolver, running_system
from anytpu.worker.remote import RemoteBackend
from engine import battery
from worker.worker_process import WorkerProcess


@pytest.fixture(scope="module")
def backend(worker: WorkerProcess) -> Iterator[Backend]:
    address = TPUClusterResolver(worker.url).address
    system = running_system(address)
    rounding = dataclasses.replace(address, numerics="tpu")
    before = battery.ROUNDING[0]
    battery.ROUNDING[0] = lambda backend: RemoteBackend.at(rounding, backend.cores)
    yield backend_of(system)
    battery.ROUNDING[0] = before


@pytest.mark.parametrize("name", battery.CASES)
def test_backend(backend: Backend, name: str):
    battery.CASES[name](backend)


def test_it_is_the_remote_backend(backend: Backend):
    assert type(backend) is RemoteBackend
    assert len(backend.cores) == 8
    assert backend.memory_bytes == 2 * 2**30
    assert not backend.is_host


def test_kernels_of_this_machine_alone_are_not_used():
    with without_foreign_kernels():
        assert foreign_kernels() is None
