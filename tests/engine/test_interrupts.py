"""Ctrl-C and SIGTERM: held back while a call runs, acted on between calls. Real signals, to real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from anytpu.engine.interrupts import deferred_interrupts, raise_if_interrupted

STOPPING = "\nanytpu: stopping after the call that runs now; press Ctrl-C again to stop at once\n"

TRAIN = """
import signal, sys
import anytpu as tpu
import keras, numpy as np

x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
with tpu.connect("virtual", cores=2).scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss="mse", steps_per_execution=5)

class Tell(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            print("training", flush=True)
            while sys.argv[1] == "spin":
                pass

def tell(what):
    weights = model.get_weights() + [np.asarray(v) for v in model.optimizer.variables]
    finite = all(np.isfinite(weight).all() for weight in weights)
    print(what, int(model.optimizer.iterations) % 5, finite, flush=True)
    return int(model.optimizer.iterations)

try:
    model.fit(x, x[:, :1], batch_size=4, epochs=10**9, verbose=0, callbacks=[Tell()])
except KeyboardInterrupt:
    before = tell("interrupted")
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0)
print("again", tell("trained") - before, np.isfinite(model.evaluate(x, x[:, :1], verbose=0)))
"""

CALL = """
import sys
from anytpu.engine.interrupts import deferred_interrupts, raise_if_interrupted

with deferred_interrupts():
    print("calling", flush=True)
    sys.stdin.readline()
    print("called", flush=True)
    raise_if_interrupted()
    print("too far", flush=True)
"""


FORK = """
import multiprocessing, signal
from anytpu.engine.interrupts import deferred_interrupts, raise_if_interrupted

context = multiprocessing.get_context("fork")
ready, wait = context.Event(), context.Event()

def work():
    ready.set()
    wait.wait()

def walk_on():
    with deferred_interrupts():
        raise_if_interrupted()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

with deferred_interrupts():
    child = context.Process(target=work)
    child.start()
    ready.wait()
    child.terminate()
    child.join(10)
    print(child.exitcode == -signal.SIGTERM)
    if child.exitcode is None:
        child.kill()
    child = context.Process(target=walk_on)
    child.start()
    child.join(10)
    print(child.exitcode)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""

FORK_OUT_OF_THE_BLOCK = """
import os, signal
from anytpu.engine.interrupts import deferred_interrupts

with deferred_interrupts():
    signal.raise_signal(signal.SIGINT)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
assert child == 0
with deferred_interrupts():
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    )


def next_line(stream) -> str:
    """Return the next line that says something."""
    return next(line for line in stream if line.strip()).strip()


def wait_for(stream, beginning: str) -> None:
    for line in stream:
        if line.startswith(beginning):
            return
    raise AssertionError(f"{beginning!r} never came")


@pytest.mark.timeout(240)
def test_ctrl_c_during_fit_leaves_the_model_at_the_last_finished_call():
    with start(TRAIN, "train") as child:
        assert next_line(child.stdout) == "training"
        child.send_signal(signal.SIGINT)
        wait_for(child.stderr, STOPPING.strip())
        out, err = child.communicate()
    assert (child.returncode, err) == (0, "")
    assert out.split("\n") == ["interrupted 0 True", "trained 0 True", "again 20 True", ""]


@pytest.mark.timeout(240)
def test_a_second_ctrl_c_does_not_wait():
    with start(TRAIN, "spin") as child:
        assert next_line(child.stdout) == "training"
        child.send_signal(signal.SIGINT)
        wait_for(child.stderr, STOPPING.strip())
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
    assert (child.returncode, err) == (0, "")
    assert out.split("\n") == ["interrupted 0 True", "trained 0 True", "again 20 True", ""]


@pytest.mark.timeout(240)
def test_sigterm_during_fit_ends_the_process():
    with start(TRAIN, "train") as child:
        assert next_line(child.stdout) == "training"
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate()
    assert (child.returncode, out) == (-signal.SIGTERM, "")


def test_sigterm_ends_the_process_after_the_call():
    with start(CALL) as child:
        assert next_line(child.stdout) == "calling"
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate("\n")
    assert (child.returncode, out, err) == (-signal.SIGTERM, "called\n", "")


def test_ctrl_c_waits_for_the_call():
    with start(CALL) as child:
        assert next_line(child.stdout) == "calling"
        child.send_signal(signal.SIGINT)
        out, err = child.communicate("\n")
    assert (child.returncode, out) == (-signal.SIGINT, "called\n")
    assert err.startswith(STOPPING)
    assert err.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_the_handlers_from_before():
    with start(FORK) as child:
        out, _ = child.communicate()
    assert (child.returncode, out) == (0, "True\n0\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_does_not_get_the_signal_of_its_parent():
    with start(FORK_OUT_OF_THE_BLOCK) as child:
        out, _ = child.communicate()
    assert (child.returncode, out) == (-signal.SIGINT, "0\n")


@pytest.fixture(autouse=True)
def restored():
    """The handlers are as they were, and nothing is pending."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    yield
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    raise_if_interrupted()


@pytest.fixture
def handled():
    """Install a handler for SIGTERM for the length of a test; return what puts it there."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGTERM, before)


def test_at_the_end_of_the_block(capsys: pytest.CaptureFixture):
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest of the block")
    assert done == ["the rest of the block"]
    assert capsys.readouterr().err == STOPPING


def test_between_two_calls():
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        done.append("the call")
        raise_if_interrupted()
        done.append("the next call")
    assert done == ["the call"]


def test_the_outermost_block_counts():
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
        done.append("the outer block")
    assert done == ["the outer block"]


def test_twice_at_once():
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        done.append("once")
        signal.raise_signal(signal.SIGINT)
        done.append("twice")
    assert done == ["once"]
    with deferred_interrupts():
        raise_if_interrupted()


def test_an_error_in_the_block_does_not_swallow_the_signal():
    with pytest.raises(KeyboardInterrupt) as caught, deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("mine")
    assert str(caught.value.__context__) == "mine"


def test_without_a_signal_nothing_happens():
    with deferred_interrupts():
        raise_if_interrupted()
    with pytest.raises(ValueError, match=r"^mine$"), deferred_interrupts():
        raise ValueError("mine")


def test_a_handler_of_the_program_gets_the_signal(handled: Callable):
    told: list[tuple] = []
    handled(lambda number, frame: told.append(number))
    with deferred_interrupts():
        signal.raise_signal(signal.SIGTERM)
        assert told == []
        raise_if_interrupted()
        assert told == [signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert told == [signal.SIGTERM]
    assert told == [signal.SIGTERM] * 2


def test_what_is_ignored_stays_ignored(handled: Callable):
    handled(signal.SIG_IGN)
    with deferred_interrupts():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)


def test_another_thread_installs_nothing():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with deferred_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))
            raise_if_interrupted()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_another_thread_does_not_act_on_a_signal_of_the_main_thread():
    failed = []

    def work() -> None:
        try:
            raise_if_interrupted()
        except BaseException as error:
            failed.append(error)

    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert failed == []
