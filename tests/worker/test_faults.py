"""Faults during a session: the worker survives each, the client gets a named error, and the next session works."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.errors import BackendError, DataError, ProgramError, WorkerLostError
from anytpu.program import ROWS, Program
from anytpu.program.file import encode
from anytpu.system.workers import WorkerAddress, parse_worker
from anytpu.worker.arrays import describe
from anytpu.worker.session import RemoteOperation, Session
from anytpu.worker.wire import messages
from error_texts import error_text
from worker.worker_process import WorkerProcess

LOST = "The values on its cores are lost: make a new strategy with tpu.connect, load saved weights, and run again"
SPEC = jax.ShapeDtypeStruct((4,), "float32")


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("mortal")
    started = WorkerProcess(folder, "--tpu", "virtual", "--cores", "2", "--deadline", "25", "--memory-limit", "1")
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def session(mortal: WorkerProcess) -> Iterator[Session]:
    with opened(mortal) as session:
        yield session


@contextlib.contextmanager
def opened(worker: WorkerProcess) -> Iterator[Session]:
    session = Session(address_of(worker))
    try:
        yield session
    finally:
        session.close()


def address_of(worker: WorkerProcess, port: int | None = None) -> WorkerAddress:
    """Return the address of a worker, or of a relay before it."""
    address = parse_worker(worker.url)
    assert address is not None
    return address if port is None else dataclasses.replace(address, target=f"127.0.0.1:{port}")


def put(session: Session, array: np.ndarray) -> int:
    name = session.new_name()
    message = messages().Put(handles=[name], arrays=[describe(array)], axis=-1, cores=2)
    session.send([array], put=message).result()
    return name


def compiled(session: Session, manifest: bytes, code: bytes) -> int:
    name, content = session.new_name(), np.frombuffer(code, np.uint8)
    message = messages().Compile(program=name, manifest=manifest, code=describe(content), cores=2)
    session.send([content], compile=message).result()
    return name


def run(session: Session, program: int, state: int, batch: np.ndarray, waits: bool = True) -> Any:
    argument = messages().Argument
    message = messages().Run(
        program=program,
        state=[argument(handle=state)],
        batch=[argument(array=describe(batch))],
        results=[session.new_name(), session.new_name()],
    )
    operation = session.send(is_call=True, run=message)
    return operation.result() if waits else operation


def program_of(step: Any) -> tuple[bytes, bytes]:
    return encode(Program("probe", step, SPEC, SPEC, ROWS), ("cpu",))


def endless(state: Any, x: Any) -> Any:
    return jax.lax.while_loop(lambda y: y[0] > -1, jnp.cos, state), x


def next_session_works(worker: WorkerProcess) -> None:
    with opened(worker) as session:
        works(session)


def works(session: Session) -> None:
    """Assert that a session computes."""
    program = compiled(session, *program_of(lambda state, x: (state + x, x)))
    run(session, program, put(session, np.ones(4, "float32")), np.ones(4, "float32"))


def test_the_child_is_killed(mortal: WorkerProcess):
    with opened(mortal) as session:
        works(session)
        (child,) = mortal.children()
        os.kill(child, signal.SIGKILL)
        text = error_text(works, session, kind=WorkerLostError)
    place = f"the worker at {mortal.target}"
    assert text == (
        f"{place} ended the session, because its child died (signal SIGKILL): SIGKILL often means that its machine ran "
        f"out of memory. {LOST}"
    )
    assert session.has_ended
    next_session_works(mortal)


def test_the_child_of_the_next_session_is_killed(mortal: WorkerProcess):
    next_session_works(mortal)
    deadline_s = time.monotonic() + 60
    while not mortal.children() and time.monotonic() < deadline_s:
        time.sleep(0.05)  # Until the next child is started.
    next_session_works(mortal)
    for child in mortal.children():
        os.kill(child, signal.SIGKILL)
    next_session_works(mortal)


def test_a_program_that_never_ends(mortal: WorkerProcess):
    with opened(mortal) as session:
        program, state = compiled(session, *program_of(endless)), put(session, np.ones(4, "float32"))
        text = error_text(run, session, program, state, np.ones(4, "float32"), kind=WorkerLostError)
    assert text == (
        f"the worker at {mortal.target} ended the session: a call or a compilation took more than 25 s. Run fewer "
        f"steps in a call, or start the worker with a larger --deadline. {LOST}"
    )
    next_session_works(mortal)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_the_worker(tmp_path: Path, number: int):
    worker = WorkerProcess(tmp_path, "--tpu", "virtual", "--cores", "2", "--max-sessions", "2")
    session = Session(address_of(worker))
    program, state = compiled(session, *program_of(endless)), put(session, np.ones(4, "float32"))
    run(session, program, state, np.ones(4, "float32"), waits=False)
    until_s = time.monotonic() + 60
    while len(children := worker.children()) < 2 and time.monotonic() < until_s:
        time.sleep(0.1)
    ends = [os.pidfd_open(child) for child in children]
    worker.process.send_signal(number)
    worker.stop()
    ended = [select.select([end], [], [], 20.0)[0] == [end] for end in ends]
    for end in ends:
        os.close(end)
    session.close()
    assert ended == [True, True]


def test_the_session_of_a_client_that_went_is_over(mortal: WorkerProcess):
    next_session_works(mortal)
    next_session_works(mortal)


def test_more_memory_than_the_session_has(session: Session):
    needed = np.zeros((300, 2**20), np.float32)
    assert error_text(put, session, needed, kind=BackendError) == (
        "out of memory on the worker: an array needs 1.17 GiB, the session holds 0 B, and it may have 1 GiB. Make the "
        "batch or the model smaller, or start the worker with a larger --memory-limit"
    )
    works(session)


def test_a_value_in_a_program_that_is_too_large(session: Session):
    huge = program_of(lambda state, x: (state + jnp.sum(jnp.ones((2**16, 2**16)) * x[0]), x))
    assert error_text(compiled, session, *huge, kind=ProgramError) == (
        "It has a value of 16 GiB, and a session of this worker has 1 GiB. Start the worker with a larger "
        "--memory-limit, or make the batch smaller."
    )
    works(session)


def test_a_callback_into_python(session: Session):
    call = jax.ffi.ffi_call("xla_ffi_python_cpu_callback", SPEC)
    exported = jax.export.export(
        jax.jit(lambda s, x: (call(s, index=np.uint64(7)), x)),
        platforms=("cpu",),
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("xla_ffi_python_cpu_callback")],
    )(SPEC, SPEC)
    manifest, _ = program_of(lambda state, x: (state, x))
    text = error_text(compiled, session, manifest, bytes(exported.serialize()), kind=ProgramError)
    assert text == "It calls 'xla_ffi_python_cpu_callback', which a worker does not run."
    works(session)


@pytest.mark.parametrize("damage", [lambda code: code[: len(code) // 2], lambda code: b"\x00" * 64, lambda code: b""])
def test_damaged_code(mortal: WorkerProcess, damage: Any):
    manifest, code = program_of(lambda state, x: (state, x))
    with opened(mortal) as session:
        error_text(compiled, session, manifest, damage(code))  # An error of ours: refused, or the child is lost.
    next_session_works(mortal)


def test_arrays_that_do_not_fit(session: Session):
    described = describe(np.ones(4, "float32"))
    described.size_bytes = 12
    message = messages().Put(handles=[session.new_name()], arrays=[described], axis=-1, cores=2)
    assert error_text(session.send(put=message).result) == "float32 of shape [4] is not an array of 12 bytes"
    message = messages().Put(handles=[session.new_name()], arrays=[describe(np.ones(4))], axis=1, cores=2)
    assert error_text(session.send(put=message).result) == "an array of 1 axes has no axis 1 to split"
    message = messages().Put(handles=[session.new_name()], arrays=[describe(np.ones(4))], axis=-1, cores=3)
    assert error_text(session.send(put=message).result) == "this worker has 2 cores, not 3"
    works(session)


def test_inputs_of_another_shape(session: Session):
    program = compiled(session, *program_of(lambda state, x: (state + x, x)))
    state = put(session, np.ones(5, "float32"))
    text = error_text(run, session, program, state, np.ones(4, "float32"))
    assert text == "'probe' takes ShapeDtypeStruct(shape=(4,), dtype=float32), not float32[5]"
    assert error_text(run, session, 10**6, state, np.ones(4, "float32")) == (
        "there is no program 1000000 in this session"
    )
    works(session)


def test_a_request_of_an_unknown_kind(session: Session):
    operation = session._open[10**6] = RemoteOperation(10**6)
    session._requests.send(messages().Request(operation=10**6).SerializeToString() + b"\x3a\x00")  # Field 7, empty.
    assert error_text(operation.result, kind=DataError) == (
        "this worker does not know a request of that kind. Install the same release on both machines: pip install "
        "--upgrade anytpu"
    )


def test_random_bytes(mortal: WorkerProcess):
    for seed in range(3):
        session = Session(address_of(mortal))
        session._requests.send(np.random.default_rng(seed).bytes(1000))
        error_text(works, session)
        next_session_works(mortal)


def test_a_second_worker_on_the_port(mortal: WorkerProcess, tmp_path: Path):
    from anytpu.worker.children import ChildOptions
    from anytpu.worker.front import Front

    port = int(mortal.target.rpartition(":")[2])
    assert error_text(Front, "127.0.0.1", port, ChildOptions("virtual", 1)) == (
        f"a worker cannot listen on 127.0.0.1:{port}: the port is taken, or the address is not this machine's. Choose "
        "another one: anytpu worker --port 0 takes a free port"
    )
