"""`CompiledExecutable`: the error of a failed call, and Ctrl-C during a compilation, with real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.engine.executable import CompiledExecutable, _failed, compile_lowered
from anytpu.errors import BackendError
from forked import python

SPEC = jax.ShapeDtypeStruct((), "float32")
COUNT = jax.ShapeDtypeStruct((), "int32")
FAILED = (
    "the call of a compiled program failed: XLA reports {!r}. The state passed to this call is lost: load saved "
    "weights into the model before you continue"
)


def fail(x: Any) -> Any:
    raise OSError("the disk is full")


def failing(state: Any, batch: Any) -> tuple:
    return state + jax.pure_callback(fail, SPEC, batch), {"loss": batch}


def failing_loop(state: Any, feed: Any, start: Any, count: Any) -> tuple:
    state, last = failing(state, feed)
    return state, last, last, start + count


def test_a_step_that_fails():
    executable = CompiledExecutable(jax.jit(failing).lower(SPEC, SPEC))
    with pytest.raises(BackendError) as caught:
        jax.block_until_ready(executable.step(np.float32(1), np.float32(2)))
    assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
    assert str(caught.value) == FAILED.format(str(caught.value.__cause__).splitlines()[0])
    assert "the disk is full" in str(caught.value.__cause__)


def test_a_loop_that_fails():
    executable = CompiledExecutable(jax.jit(failing_loop).lower(SPEC, SPEC, COUNT, COUNT))
    with pytest.raises(BackendError) as caught:
        executable.steps(np.float32(1), np.float32(2), 0, 1)
    assert str(caught.value) == FAILED.format(str(caught.value.__cause__).splitlines()[0])


def test_only_the_first_line_is_quoted():
    first_line = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes."
    assert str(_failed(ValueError(f"{first_line}\nAllocation type: heap\n"))) == FAILED.format(first_line)
    assert str(_failed(ValueError(""))) == FAILED.format("")


LEAVING = (
    "anytpu: a program is still being compiled, and the process ends when that is done; press Ctrl-C again to end it "
    "at once\n"
)

# A stand-in for the result of `lower()`: its compilation lasts until the parent writes to its standard input.
LEFT = """
import os, threading
from anytpu.engine.executable import compile_lowered

class Lowered:
    def compile(self):
        print("compiling", flush=True)
        os.read(0, 1)
        print("compiled", flush=True)

try:
    compile_lowered(Lowered())
except KeyboardInterrupt:
    print("interrupted", [thread.name for thread in threading.enumerate() if thread.daemon], flush=True)
"""

FIT = """
import logging, signal
import anytpu as tpu
import keras, jax, numpy as np

class Recorder(logging.Handler):
    steps = []
    def emit(self, record):
        line = record.getMessage()
        if line.startswith("Finished XLA compilation of jit(run"):
            self.steps.append("compiled")
        if line.startswith("Finished jaxpr to MLIR module conversion jit(run"):
            print("compiling", flush=True)

class Deep(keras.layers.Layer):
    def call(self, x):
        for index in range(200):
            x = keras.ops.sin(x @ keras.ops.transpose(x)) @ x + keras.ops.cumsum(x, axis=index % 2)
        return x

x = np.random.default_rng(0).normal(size=(8, 8)).astype("float32")
with tpu.connect("virtual", cores=2).scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), Deep()])
    model.compile("sgd", "mse")
before = model.get_weights()
loggers = logging.getLogger("jax._src.interpreters.pxla"), logging.getLogger("jax._src.dispatch")
for logger in loggers:
    logger.addHandler(Recorder())
    logger.setLevel("DEBUG")
    logger.propagate = False
try:
    model.fit(x, x, verbose=0)
except KeyboardInterrupt:
    print(Recorder.steps, all((new == old).all() for new, old in zip(model.get_weights(), before)), flush=True)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
signal.raise_signal(signal.SIGTERM)
"""


def start(program: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [*python(), "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    )


def test_ctrl_c_does_not_wait_for_a_compilation_and_the_process_ends_after_it():
    with start(LEFT) as child:
        assert child.stdout.readline() == "compiling\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted ['anytpu compilation']\n"
        assert child.stderr.readline() == LEAVING
        out, err = child.communicate("\n")
    assert (child.returncode, out, err) == (0, "compiled\n", "")


def test_a_second_ctrl_c_ends_a_process_that_waits_for_a_compilation():
    with start(LEFT) as child:
        assert child.stdout.readline() == "compiling\n"
        child.send_signal(signal.SIGINT)
        assert child.stderr.readline() == LEAVING
        child.send_signal(signal.SIGINT)
        # communicate() closes the input, which would end the compilation before the signal is acted on.
        child.wait()
        out, err = child.communicate()
    assert (child.returncode, out, err) == (-signal.SIGINT, "interrupted ['anytpu compilation']\n", "")


def test_sigterm_during_a_compilation_ends_the_process():
    with start(LEFT) as child:
        assert child.stdout.readline() == "compiling\n"
        child.send_signal(signal.SIGTERM)
        child.wait()
        out, err = child.communicate()
    assert (child.returncode, out, err) == (-signal.SIGTERM, "", "")


@pytest.mark.timeout(240)
def test_ctrl_c_while_xla_compiles_a_fit():
    with start(FIT) as child:
        assert child.stdout.readline() == "compiling\n"
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate()
    assert (child.returncode, out) == (-signal.SIGTERM, "[] True\n")


def test_an_error_of_the_compiler_is_raised_where_it_was_called():
    class Refused:
        def compile(self) -> None:
            raise ValueError("no")

    with pytest.raises(ValueError, match=r"^no$"):
        compile_lowered(Refused())  # pyright: ignore[reportArgumentType]


def test_in_another_thread_it_compiles_there():
    found = []
    lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(2))
    thread = threading.Thread(target=lambda: found.append(compile_lowered(lowered)(jnp.ones(2)).tolist()))
    thread.start()
    thread.join()
    assert found == [[2.0, 2.0]]
