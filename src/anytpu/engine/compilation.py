"""A compilation that Ctrl-C and SIGTERM need not wait for.

Idea: XLA compiles in one long call, in which Python runs no signal handler. So the main thread lets another one make
that call and waits for it, which a signal ends at once. A function is traced and lowered in the thread that asks: Keras
and JAX keep what belongs to a trace by thread.

Rule: a compilation that nobody waits for any more goes on, and the process does not end before it: XLA aborts a process
that ends while it compiles.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import signal
import sys
import threading
from typing import Any

import jax

from anytpu.engine.interrupts import immediate_interrupts

_LEAVING = (
    "anytpu: a program is still being compiled, and the process ends when that is done; press Ctrl-C again to end it "
    "at once"
)

_running: set[threading.Thread] = set()


def compiled(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile, and act on SIGINT and SIGTERM at once meanwhile.

    Args:
        lowered: what `jax.jit(...).lower(...)` returned.

    Raises:
        jax.errors.JaxRuntimeError: XLA refuses the program.
    """
    if threading.current_thread() is not threading.main_thread():
        return lowered.compile()
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
    thread = threading.Thread(target=_compile, args=(lowered, outcome), name="anytpu compilation", daemon=True)
    with immediate_interrupts():
        thread.start()
        return outcome.result()


def _compile(lowered: jax.stages.Lowered, outcome: concurrent.futures.Future[Any]) -> None:
    _running.add(threading.current_thread())
    try:
        outcome.set_result(lowered.compile())
    except BaseException as error:
        outcome.set_exception(error)
    finally:
        _running.discard(threading.current_thread())


@atexit.register
def _wait_for_all() -> None:
    for thread in list(_running):
        try:
            print(_LEAVING, file=sys.stderr)
            thread.join()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
