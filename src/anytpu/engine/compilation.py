"""Compilation that Ctrl-C and SIGTERM interrupt at once.

Idea: XLA compiles in one long call, during which Python runs no signal handler. The main thread makes that call in a
worker thread and waits for it; a signal ends the wait. Tracing and lowering stay in the calling thread, because Keras
and JAX keep their tracing state per thread.

Rule: an abandoned compilation continues, and the process exits only after it: XLA aborts a process that exits during a
compilation.
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


def compile_lowered(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile a lowered function; SIGINT and SIGTERM act at once meanwhile.

    Args:
        lowered: result of `jax.jit(...).lower(...)`.

    Raises:
        jax.errors.JaxRuntimeError: XLA cannot compile the program.
    """
    if threading.current_thread() is not threading.main_thread():
        # Python runs signal handlers in the main thread only, so this thread may block in XLA.
        return lowered.compile()
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
    # A daemon: `_wait_for_all` joins it at exit, with a message and a second Ctrl-C that ends the process.
    thread = threading.Thread(target=_compile, args=(lowered, outcome), name="anytpu compilation", daemon=True)
    with immediate_interrupts():
        thread.start()
        return outcome.result()


def _compile(lowered: jax.stages.Lowered, outcome: concurrent.futures.Future[Any]) -> None:
    """Compile in a worker thread, and store the executable or the exception in `outcome`."""
    _running.add(threading.current_thread())
    try:
        outcome.set_result(lowered.compile())
    except BaseException as error:
        outcome.set_exception(error)
    finally:
        _running.discard(threading.current_thread())


@atexit.register
def _wait_for_all() -> None:
    """Wait at exit for abandoned compilations; Ctrl-C ends the process with the default handler."""
    for thread in list(_running):
        try:
            print(_LEAVING, file=sys.stderr)
            thread.join()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
