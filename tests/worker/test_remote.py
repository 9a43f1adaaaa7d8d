"""The battery of every backend, on a worker in another process, with TLS and a token."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anytpu.engine import Backend, backend_of
from anytpu.engine.foreign import foreign_kernels, without_foreign_kernels
from anytpu.program import REPLICATED, ROWS, Program, spec_of
from anytpu.system import TPUClusterResolver, running_system
from anytpu.worker.remote import RemoteBackend
from anytpu.worker.session import Session
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


def test_a_result_is_read_while_another_thread_calls(backend: Backend, monkeypatch: pytest.MonkeyPatch):
    send = Session.send

    def slow_send(session: Session, *args: Any, **request: Any) -> Any:
        operation = send(session, *args, **request)
        if "run" in request:
            time.sleep(0.02)  # As on a slow network. Meanwhile the other thread reads.
        return operation

    monkeypatch.setattr(Session, "send", slow_send)

    def step(state: Any, batch: Any) -> Any:
        return {"count": state["count"] + 1}, {"sum": batch.sum()}

    specs = spec_of({"count": np.int32(0)})
    batch = np.arange(8, dtype="float32")
    executable = backend.compile(Program("count/train", step, specs, spec_of(batch), ROWS))
    state: Any = {"count": backend.put(np.int32(0), REPLICATED)}
    losses, read = queue.Queue[Any](), list[float]()

    def read_losses() -> None:
        while (loss := losses.get()) is not None:
            read.append(float(backend.get(loss)["sum"]))

    reader = threading.Thread(target=read_losses)
    reader.start()
    for _ in range(40):
        state, loss = executable.step(state, backend.put(batch, ROWS))
        losses.put(loss)
    losses.put(None)
    reader.join()
    assert read == [28.0] * 40
    assert int(backend.get(state)["count"]) == 40


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
