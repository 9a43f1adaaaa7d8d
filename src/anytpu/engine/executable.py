"""`CompiledExecutable`: the executable of the backends that run in this process, and its compilation.

Idea: XLA compiles in one long call, during which Python runs no signal handler. The main thread makes that call in a
worker thread and waits for it; a signal (Ctrl-C, SIGTERM) ends the wait. Tracing and lowering stay in the calling
thread, because Keras and JAX keep their tracing state per thread. An abandoned compilation continues, and the process
exits only after it: XLA aborts a process that exits during a compilation.

Rule: every function is compiled before its first call. So compilations are counted and timed, and their errors are
raised, in one place; a call only passes arrays. A failed call has already consumed its state, and its error says so.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, final

import jax
import numpy as np

from anytpu.engine.backend import Executable, StepResults
from anytpu.engine.interrupts import immediate_interrupts
from anytpu.errors import BackendError
from anytpu.program.program import Tree


@final
class CompiledExecutable(Executable):
    """An XLA executable of one Program, as a single step or as a loop.

    Args:
        lowered: result of `jax.jit(...).lower(...)` for a function whose second result is the outputs of one step.
    """

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        self._compiled = compile_lowered(lowered)
        self._outputs = jax.tree.map(lambda info: jax.ShapeDtypeStruct(info.shape, info.dtype), lowered.out_info[1])

    @property
    def outputs(self) -> Tree:
        """Specs of the outputs of one step."""
        return self._outputs

    @property
    def text(self) -> str:
        """HLO text of the compiled module."""
        return self._compiled.as_text() or ""

    @property
    def temporary_bytes(self) -> int:
        """Bytes that XLA allocates for each call besides arguments and results; 0 if XLA does not report them."""
        sizes = self._compiled.memory_analysis()
        return 0 if sizes is None else sizes.temp_size_in_bytes

    @functools.cached_property
    def flops(self) -> float | None:
        """Operations of one step on one core, as XLA counts them; None if it does not."""
        costs = self._compiled.cost_analysis()
        return costs.get("flops") if isinstance(costs, dict) else None

    def step(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        """Run one step.

        Raises:
            BackendError: XLA failed at run time, for example because memory ran out.
        """
        return self._call(state, batch)

    def steps(self, state: Tree, feed: Tree, start: int, count: int) -> StepResults:
        """Run `count` steps of a feed in one compiled loop.

        Raises:
            BackendError: XLA failed at run time, for example because memory ran out.
        """
        state, last, every, bad_steps = self._call(state, feed, np.int32(start), np.int32(count))
        return StepResults(state, last, every, count, bad_steps)

    def _call(self, *arguments: Any) -> Any:
        # JAX refuses to call what is compiled already.
        if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            with jax.disable_jit(False):
                return self._call(*arguments)
        try:
            return self._compiled(*arguments)
        except jax.errors.JaxRuntimeError as error:
            raise _failed(error) from error


def is_canonical(leaf: Any) -> bool:
    """Return whether a leaf is a NumPy array with a dtype that JAX keeps."""
    return isinstance(leaf, np.ndarray) and jax.dtypes.canonicalize_dtype(leaf.dtype) == leaf.dtype


def is_ready(tree: Tree) -> bool:
    """Return whether all arrays of a tree are computed; a NumPy array always is."""
    return all(not isinstance(array, jax.Array) or _is_computed(array) for array in jax.tree.leaves(tree))


def _is_computed(array: Any) -> bool:
    return array.is_ready()


def wait(tree: Tree) -> None:
    """Wait until all arrays of a tree are computed.

    Raises:
        BackendError: XLA failed while it computed one of them.
    """
    _complete(jax.block_until_ready, tree)


def fetch(tree: Tree) -> None:
    """Transfer all arrays of a tree to the host together: NumPy reads each of them without waiting afterwards.

    Raises:
        BackendError: a call failed that computes one of them.
    """
    _complete(jax.device_get, tree)


def _complete(action: Callable[[Tree], Any], tree: Tree) -> None:
    try:
        action(tree)
    except jax.errors.JaxRuntimeError as error:
        raise _failed(error) from error


def _failed(error: Exception) -> BackendError:
    first_line = next(iter(str(error).strip().splitlines()), "")
    return BackendError(
        f"the call of a compiled program failed: XLA reports {first_line!r}. The state passed to this call is lost: "
        "load saved weights into the model before you continue"
    )


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
