"""The memory of a session: what its arrays, its programs and its calls really take."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.errors import BackendError, WorkerLostError
from anytpu.system.workers import WorkerAddress
from anytpu.worker.arrays import describe
from anytpu.worker.session import Session
from anytpu.worker.wire import messages
from error_texts import error_text
from worker.test_faults import LOST, compiled, program_of, put, run, works

LIMIT_BYTES = 200 * 2**20
REFUSED = (
    r"out of memory on the worker: {} needs [\d.]+ MiB, the session holds [\d.]+ MiB, and it may have 200 MiB\. Make "
    r"the batch or the model smaller, or start the worker with a larger --memory-limit"
)


FRONT = f"""
from anytpu.worker.children import ChildOptions
from anytpu.worker.front import Front
front = Front("127.0.0.1", 0, ChildOptions("virtual", 2, {LIMIT_BYTES}))
print(front.port, flush=True)
front.wait()
"""


@pytest.fixture(scope="module")
def address() -> Iterator[WorkerAddress]:
    """A worker with less memory than its command gives, in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", FRONT], stdout=subprocess.PIPE, text=True) as front:
        assert front.stdout is not None
        try:
            yield WorkerAddress(f"127.0.0.1:{int(front.stdout.readline())}")
        finally:
            front.kill()


@pytest.fixture
def session(address: WorkerAddress) -> Iterator[Session]:
    started = Session(address)
    try:
        yield started
    finally:
        started.close()


def put_small(session: Session, count: int) -> list[int]:
    """Put arrays of one byte, in one request."""
    names = [session.new_name() for _ in range(count)]
    arrays = [describe(np.ones(1, "uint8"))] * count
    session.send(put=messages().Put(handles=names, arrays=arrays, axis=-1, cores=2)).result()
    return names


def test_many_small_arrays(session: Session):
    works(session)
    assert re.fullmatch(REFUSED.format("an array"), error_text(put_small, session, 80_000, kind=BackendError))
    names: list[int] = []
    with pytest.raises(BackendError) as caught:
        for _ in range(20):
            names += put_small(session, 8_000)
    assert re.fullmatch(REFUSED.format("an array"), str(caught.value))
    # The content of the arrays is 100 KB; they take a large part of the memory.
    assert 8_000 < len(names) < 80_000
    for name in names:
        session.unused("handles", name)
    put_small(session, 8_000)
    works(session)


def test_many_programs(session: Session):
    """The code of a program has 3 MiB; the compiled one takes more."""
    works(session)
    programs: list[int] = []
    with pytest.raises(BackendError) as caught:
        for seed in range(40):
            constants = np.random.default_rng(seed).random((3, 2**18), dtype="float32")

            def step(state: Any, x: Any, constants: Any = list(constants)) -> Any:  # noqa: B006
                return state + sum(jnp.asarray(constant)[x[0].astype(int)] for constant in constants), x

            programs.append(compiled(session, *program_of(step)))
    assert re.fullmatch(REFUSED.format("a program"), str(caught.value))
    assert len(programs) > 1
    for program in programs:
        session.unused("programs", program)
    works(session)


def test_a_call_that_takes_far_more(address: WorkerAddress, session: Session):
    def endless(state: Any, x: Any) -> Any:
        carry = [jnp.full(2**24, x[0] + index) for index in range(8)]
        done = jax.lax.while_loop(lambda y: y[0][0] > -2, lambda y: [jnp.cos(array) for array in y], carry)
        return state + sum(array[0] for array in done), x

    program, state = compiled(session, *program_of(endless)), put(session, np.ones(4, "float32"))
    text = error_text(run, session, program, state, np.ones(4, "float32"), kind=WorkerLostError)
    assert text == (
        f"the worker at {address.target} ended the session: it took more than twice the memory that it may have, "
        "200 MiB. Make the batch or the model smaller, or start the worker with a larger --memory-limit. " + LOST
    )
