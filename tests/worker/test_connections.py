"""Connections that break: a session continues within its lease, and no step is lost or repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import WorkerLostError
from anytpu.system import shutdown_tpu_system
from anytpu.worker.session import Session, describe_worker
from worker.relay import Relay
from worker.test_faults import address_of, works
from worker.worker_process import WorkerProcess

X = np.random.default_rng(0).random((640, 20), dtype="float32")
Y = X.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def leased(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("leased")
    started = WorkerProcess(folder, "--tpu", "virtual", "--cores", "2", "--lease", "6", "--max-sessions", "2")
    try:
        yield started
    finally:
        shutdown_tpu_system()
        started.stop()


def port_of(worker: WorkerProcess) -> int:
    return int(worker.target.rpartition(":")[2])


def fitted(name: str, **arguments: Any) -> list[Any]:
    keras.utils.set_random_seed(7)
    strategy = tpu.connect(name, **arguments)
    with strategy.scope():
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
        model.compile("adam", "mse", steps_per_execution=1)
    losses = model.fit(X, Y, batch_size=16, epochs=15, verbose=0).history["loss"]
    return [losses, *[np.asarray(weight.value) for weight in model.weights]]


def test_fit_over_a_connection_that_breaks(leased: WorkerProcess):
    with Relay(port_of(leased)) as relay:
        is_over = threading.Event()

        def cut() -> None:
            while not is_over.wait(0.4):
                relay.cut()

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            remote = fitted(leased.url.replace(str(port_of(leased)), str(relay.port), 1))
        finally:
            is_over.set()
            cutter.join()
        shutdown_tpu_system()
    for left, right in zip(remote, fitted("virtual", cores=2), strict=True):
        np.testing.assert_array_equal(left, right)
    assert "session of" in leased.log.read_text()


def test_a_lease_that_is_over(leased: WorkerProcess):
    with Relay(port_of(leased)) as relay:
        address = address_of(leased, port=relay.port)
        session = Session(address)
        works(session)
        relay.refuse(True)
        relay.cut()
        time.sleep(8)
        relay.refuse(False)
        with pytest.raises(WorkerLostError) as caught:
            works(session)
    assert session.has_ended
    text = str(caught.value)
    assert text.startswith(f"the worker at {address.target} does not have this session any more: ") or text.startswith(
        f"the connection to the worker at {address.target} was lost: unavailable"
    )
    wait_for_no_session(leased)


def test_two_sessions_at_once(leased: WorkerProcess):
    first, second = Session(address_of(leased)), Session(address_of(leased))
    works(first)
    works(second)
    assert len(status(leased).sessions) == 2
    first.close()
    works(second)
    second.close()
    wait_for_no_session(leased)


def status(worker: WorkerProcess) -> Any:
    from anytpu.worker.session import worker_status

    return worker_status(address_of(worker))


def wait_for_no_session(worker: WorkerProcess) -> None:
    until = time.monotonic() + 20
    while status(worker).sessions and time.monotonic() < until:
        time.sleep(0.2)
    assert not status(worker).sessions


def test_the_lease_is_told(leased: WorkerProcess):
    assert describe_worker(address_of(leased)).lease_s == 6


def test_the_bytes_of_a_generator(leased: WorkerProcess):
    """A stack of batches has room for 64 MiB; only its batches are sent, once and compressed where that pays."""
    x = np.random.default_rng(1).random((640, 1000), dtype="float32")

    def batches() -> Iterator[Any]:
        while True:
            for start in range(0, 640, 32):
                yield x[start : start + 32], Y[start : start + 32]

    with Relay(port_of(leased)) as relay:
        with tpu.connect(leased.url.replace(f":{port_of(leased)}", f":{relay.port}")).scope():
            model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(batches(), steps_per_epoch=20, epochs=2, shuffle=False, verbose=0)
        assert x.nbytes * 2 < relay.passed_bytes < x.nbytes * 2 + 300_000
        shutdown_tpu_system()
