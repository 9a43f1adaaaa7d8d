"""Ctrl-C and SIGTERM: held back while a call runs, acted on between calls. Real signals, to real processes."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from anytpu.engine.interrupts import (
    deferred_interrupts,
    immediate_interrupts,
    raise_if_interrupted,
)
from forked import python

STARTED = "anytpu: the 2 cores are virtual: simulated on this machine's CPU (2 virtual cores).\n"
STOPPING = "\nanytpu: stopping after the call that runs now; press Ctrl-C again to stop at once\n"

TRAIN = """
import signal, sys, threading
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
            if sys.argv[1] == "wait":
                threading.Event().wait()

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
import os, sys
from anytpu.engine.interrupts import deferred_interrupts, raise_if_interrupted

with deferred_interrupts():
    print(os.getpid(), flush=True)  # The signal goes to it: one that is passed on may come after the line.
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
    child.join(60)
    print(child.exitcode == -signal.SIGTERM)
    if child.exitcode is None:
        child.kill()
    child = context.Process(target=walk_on)
    child.start()
    child.join(60)
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


CHAINED = """
import os, signal, sys
import anytpu as tpu
import keras, numpy as np

called = []

class Preempt(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.chained(signal.getsignal(number)))

    def chained(self, old):
        def handler(number, frame):
            called.append(number)
            old(number, frame)
        return handler

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and sys.argv[1] == "fit":
            signal.raise_signal(signal.SIGINT)

with tpu.connect("virtual", cores=2).scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
x = np.zeros((8, 3), "float32")
for number in range(2):
    called.clear()
    try:
        model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[Preempt()] if number == 0 else None)
        signal.raise_signal(signal.SIGINT)
        print("too far")
    except KeyboardInterrupt:
        print(len(called), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("too far", flush=True)
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [*python(), "-c", program, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    )


def next_line(stream) -> str:
    """Return the next line that says something."""
    return next(line for line in stream if line.strip()).strip()


@pytest.mark.timeout(240)
def test_ctrl_c_during_fit_leaves_the_model_at_the_last_finished_call():
    with start(TRAIN, "train") as child:
        assert next_line(child.stdout) == "training"
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
    # The signal comes while a call runs or between two.
    assert child.returncode == 0
    assert err in (STARTED, STARTED + STOPPING)
    assert out.split("\n") == ["interrupted 0 True", "trained 0 True", "again 20 True", ""]


@pytest.mark.timeout(240)
def test_ctrl_c_in_a_callback_acts_at_once():
    with start(TRAIN, "wait") as child:
        assert next_line(child.stdout) == "training"
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
    assert (child.returncode, err) == (0, STARTED)
    assert out.split("\n") == ["interrupted 0 True", "trained 0 True", "again 20 True", ""]


@pytest.mark.timeout(240)
def test_sigterm_during_fit_ends_the_process():
    with start(TRAIN, "train") as child:
        assert next_line(child.stdout) == "training"
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate()
    assert (child.returncode, out) == (-signal.SIGTERM, "")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("when", ["fit", "afterwards"])
def test_a_handler_of_a_callback_calls_the_one_before(when):
    with start(CHAINED, when) as child:
        out, err = child.communicate()
    assert (child.returncode, out, err) == (-signal.SIGTERM, "1\n1\n", STARTED)


def test_sigterm_ends_the_process_after_the_call():
    with start(CALL) as child:
        os.kill(int(next_line(child.stdout)), signal.SIGTERM)
        out, err = child.communicate("\n")
    assert (child.returncode, out, err) == (-signal.SIGTERM, "called\n", "")


def test_ctrl_c_waits_for_the_call():
    with start(CALL) as child:
        os.kill(int(next_line(child.stdout)), signal.SIGINT)
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


def test_a_signal_acts_at_once_where_nothing_is_at_stake():
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts(), immediate_interrupts():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest of the block")
    assert done == []


def test_a_signal_from_before_acts_where_nothing_is_at_stake():
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        done.append("the call")
        with immediate_interrupts():
            done.append("the wait")
    assert done == ["the call"]


def test_a_call_inside_is_finished_first():
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts(), immediate_interrupts():
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("the call")
        done.append("what comes after it")
    assert done == ["the call"]


def test_what_ends_after_an_interrupt_is_not_interrupted():
    done = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        try:
            with immediate_interrupts():
                signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            done.append("the end")
    assert done == ["the end"]


def test_outside_of_a_call_there_is_nothing_to_act_on():
    before = signal.getsignal(signal.SIGINT)
    with immediate_interrupts():
        assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_the_program_puts_in_place_meanwhile_stays(handled: Callable):
    told: list[str] = []

    def mine(number, frame):
        told.append("mine")

    with deferred_interrupts(), immediate_interrupts():
        handled(mine)
        with deferred_interrupts():
            signal.raise_signal(signal.SIGTERM)
            assert told == []
        assert told == ["mine"]
    assert signal.getsignal(signal.SIGTERM) is mine


def test_a_handler_that_the_program_puts_in_place_meanwhile_calls_the_one_before(handled: Callable):
    told: list[str] = []

    def mine(number, frame):
        told.append("mine")
        ours(number, frame)

    handled(lambda number, frame: told.append("before"))
    with deferred_interrupts(), immediate_interrupts():
        ours = handled(mine)
        signal.raise_signal(signal.SIGTERM)
        assert told == ["mine", "before"]
        with deferred_interrupts():
            signal.raise_signal(signal.SIGTERM)
            assert told == ["mine", "before"]
        assert told == ["mine", "before"] * 2
    signal.raise_signal(signal.SIGTERM)
    assert told == ["mine", "before"] * 3


def test_a_handler_that_the_program_takes_away_again_is_gone(handled: Callable):
    def before(number, frame):
        pass

    handled(before)
    with deferred_interrupts(), immediate_interrupts():
        ours = signal.signal(signal.SIGTERM, lambda number, frame: None)
        with deferred_interrupts():
            pass
        signal.signal(signal.SIGTERM, ours)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_handler_of_ours_that_is_left_behind_passes_signals_on():
    with deferred_interrupts(), immediate_interrupts():
        ours = signal.getsignal(signal.SIGINT)
    before = signal.signal(signal.SIGINT, ours)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_exit_of_the_program_in_a_call_comes_after_it(handled: Callable):
    done = []
    handled(lambda number, frame: sys.exit(3))
    with pytest.raises(SystemExit), deferred_interrupts(), immediate_interrupts():
        with deferred_interrupts():
            signal.raise_signal(signal.SIGTERM)
            done.append("the call")
        done.append("what comes after it")
    assert done == ["the call"]


class Dropped:
    """An object in a reference cycle: the garbage collector drops it."""

    def __init__(self) -> None:
        self.me = self


class DroppedBySignal(Dropped):
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def collect(stack: contextlib.ExitStack, *actions: Callable[[], object]) -> None:
    """Collect garbage with a callback for each action, which is called once."""
    todo = list(actions)

    def callback(phase: str, info: dict) -> None:
        if phase == "stop" and todo:
            todo.pop(0)()

    for _ in actions:
        gc.callbacks.append(callback)
        stack.callback(gc.callbacks.remove, callback)
    gc.collect()


def in_a_callback_of_the_collector(stack: contextlib.ExitStack) -> None:
    collect(stack, lambda: signal.raise_signal(signal.SIGINT))


def in_a_callback_and_in_the_next(stack: contextlib.ExitStack) -> None:
    """The second callback waits until the signal comes again, and Python ignores its exception too."""
    collect(stack, lambda: signal.raise_signal(signal.SIGINT), lambda: threading.Event().wait())


def in_a_callback_of_a_weak_reference(stack: contextlib.ExitStack) -> None:
    weakref.finalize(Dropped(), signal.raise_signal, signal.SIGINT)
    gc.collect()


def in_del(stack: contextlib.ExitStack) -> None:
    DroppedBySignal()
    gc.collect()


@pytest.mark.parametrize(
    "drop",
    [
        in_a_callback_of_the_collector,
        in_a_callback_and_in_the_next,
        in_a_callback_of_a_weak_reference,
        in_del,
    ],
)
def test_a_signal_whose_exception_python_ignores_comes_again(drop: Callable, capsys: pytest.CaptureFixture):
    hook, done = sys.unraisablehook, []
    stack = contextlib.ExitStack()
    with pytest.raises(KeyboardInterrupt), stack, deferred_interrupts(), immediate_interrupts():
        drop(stack)
        done.append("went on")
        threading.Event().wait()
    assert done == ["went on"]
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_an_exit_of_the_program_that_python_ignores_comes_again(handled: Callable):
    told: list[int] = []

    def leave(number: int, frame: object) -> None:
        told.append(number)
        sys.exit(3)

    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    handled(leave)
    with pytest.raises(SystemExit) as caught, deferred_interrupts(), immediate_interrupts():
        Dropped()
        threading.Event().wait()
    assert (caught.value.code, told) == (3, [signal.SIGTERM] * 2)


def test_other_exceptions_that_python_ignores_reach_the_hook_of_the_program(monkeypatch: pytest.MonkeyPatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(repr(unraisable.exc_value)))

    class Dropped:
        def __del__(self) -> None:
            raise ValueError("mine")

    with deferred_interrupts(), immediate_interrupts():
        Dropped()
    assert seen == ["ValueError('mine')"]


def test_a_hook_that_the_program_puts_in_place_meanwhile_stays(monkeypatch: pytest.MonkeyPatch):
    def mine(unraisable: object) -> None: ...

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with deferred_interrupts(), immediate_interrupts():
        sys.unraisablehook = mine
    assert sys.unraisablehook is mine


def test_a_second_signal_ends_a_process_whose_first_waits_for_the_other_hosts():
    program = (
        "import os, signal, time\n"
        "from anytpu.engine import interrupts\n"
        "from anytpu.train.stopping import StopSignals\n"
        "interrupts.wait_for_agreement()\n"
        "with StopSignals(lambda: 'saved', lambda: True), interrupts.deferred_interrupts():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print(interrupts.pending_signal(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('still there', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "2\n"), done.stderr
