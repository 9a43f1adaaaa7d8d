"""Ctrl-C and SIGTERM while training waits for its input: real signals, to real processes, which wait on real pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forked import python

MODEL = """
import gc, os, queue, signal, sys, threading
import anytpu as tpu
import keras, numpy as np

x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
y = x[:, :1]
strategy = tpu.connect("virtual", cores=2)
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=1)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)

def waits():
    if sys.argv[1] == "collector":
        gc.callbacks.append(waits_in_the_collector)
        gc.collect()
        threading.Event().wait()
    print("waiting", flush=True)
    if sys.argv[1] == "read":
        os.read(0, 1)
    if sys.argv[1] == "queue":
        queue.Queue().get()
    if sys.argv[1] == "lock":
        threading.Event().wait()

# Python ignores the KeyboardInterrupt that is raised in it.
def waits_in_the_collector(phase, info):
    gc.callbacks.remove(waits_in_the_collector)
    print("waiting", flush=True)
    threading.Event().wait()

def batches():
    for _ in range(3):
        yield x, y
    waits()

def train(batch):
    rows, targets = batch
    def loss():
        return tpu.compute_average_loss(keras.losses.mean_squared_error(targets, model(rows)))
    value, gradients = tpu.value_and_grad(loss, model.trainable_variables)()
    optimizer.apply(gradients, model.trainable_variables)
    return value
"""
CALLS = """
def interrupted(call):
    try:
        call()
    except KeyboardInterrupt:
        handlers = signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM) == 0
        finite = all(np.isfinite(weight).all() for weight in model.get_weights())
        print("interrupted", int(model.optimizer.iterations), finite, *handlers, flush=True)

interrupted(lambda: model.fit(batches(), shuffle=False, verbose=0))
interrupted(lambda: model.fit(batches(), steps_per_epoch=2, epochs=3, shuffle=False, verbose=0))
interrupted(lambda: model.evaluate(batches(), verbose=0))
interrupted(lambda: model.predict(batches(), verbose=0))
model.fit(x, y, verbose=0)
print("trained", int(model.optimizer.iterations), flush=True)
"""
LOOP = """
source = iter(strategy.distribute_dataset(list(3 * [(x, y)])))

def dealt():
    yield from source
    waits()

try:
    strategy.run_steps(train, dealt(), steps=10)
except KeyboardInterrupt:
    print("interrupted", 1 <= int(optimizer.iterations) <= 3, np.isfinite(model.get_weights()[0]).all(), flush=True)
"""
ESTIMATOR = """
import tempfile

def model_fn(features, labels, mode, params):
    loss = keras.ops.mean((keras.layers.Dense(1)(features) - labels) ** 2)
    train_op = tpu.CrossShardOptimizer(keras.optimizers.SGD(0.1)).minimize(loss, global_step=tpu.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

resolver = tpu.TPUClusterResolver("virtual", cores=2)
config = tpu.RunConfig(cluster=resolver, tpu_config=tpu.TPUConfig(1), save_checkpoints_steps=2)
with tempfile.TemporaryDirectory() as folder:
    one = tpu.TPUEstimator(model_fn, folder, config, train_batch_size=4)
    try:
        one.train(lambda params: batches(), steps=10)
    except KeyboardInterrupt:
        print("interrupted", one.latest_checkpoint().removeprefix(folder), flush=True)
"""
# The workers of the data set hold the pipe open for as long as they live.
WORKERS = """
import pathlib, sys
import numpy as np

def stuck(index):
    global pipe
    if index == 3:
        pipe = open(sys.argv[1], "w")
        print("waiting", file=pipe, flush=True)
        open(sys.argv[2]).read()
    return np.zeros((4, 3), "float32"), np.zeros((4, 1), "float32")

if __name__ == "__main__":
    import anytpu as tpu
    import keras

    with tpu.connect("virtual", cores=2).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    data = tpu.pipeline.Dataset.from_source(list(range(8))).map(stuck).prefetch(1, workers=1)
    try:
        model.fit(data, shuffle=False, verbose=0)
    except KeyboardInterrupt:
        print("interrupted", int(model.optimizer.iterations) <= 3, flush=True)
"""
THREAD = """
def stuck(index):
    if index == 3:
        waits()
    return x, y

def walked():
    for index in range(8):
        yield stuck(index)

data = tpu.pipeline.Dataset.from_generator(walked)
try:
    model.fit(data, shuffle=False, verbose=0)
except KeyboardInterrupt:
    print("interrupted", int(model.optimizer.iterations) <= 3, flush=True)
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [*python(), "-c", program, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("wait", ["read", "queue", "lock", "collector"])
def test_ctrl_c_ends_a_wait_for_input_at_once(wait: str):
    said = []
    with start(MODEL + CALLS, wait) as child:
        for line in child.stdout:
            said.append(line)
            if line == "waiting\n":
                child.send_signal(signal.SIGINT)
        err = child.stderr.read()
    assert child.returncode == 0, err
    waiting = "waiting\n"
    assert said == [
        *(waiting, "interrupted 3 True True True\n"),
        *(waiting, "interrupted 6 True True True\n"),
        *(waiting, "interrupted 6 True True True\n"),
        *(waiting, "interrupted 6 True True True\n"),
        "trained 7\n",
    ]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("program", [CALLS, LOOP, ESTIMATOR, THREAD], ids=["fit", "run_steps", "estimator", "thread"])
def test_sigterm_ends_a_process_that_waits_for_input(program: str):
    with start(MODEL + program, "lock") as child:
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate()
    assert (child.returncode, out) == (-signal.SIGTERM, "")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("program", "left"),
    [(LOOP, "interrupted True True\n"), (ESTIMATOR, "interrupted /2\n"), (THREAD, "interrupted True\n")],
    ids=["run_steps", "estimator", "thread"],
)
def test_ctrl_c_ends_other_waits_for_input(program: str, left: str):
    with start(MODEL + program, "lock") as child:
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
    assert (child.returncode, out.removeprefix("waiting\n")) == (0, left), err


@pytest.mark.timeout(240)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_worker_process_outlives_a_stop(tmp_path: Path, number: signal.Signals):
    program, alive, never = tmp_path / "train.py", tmp_path / "alive", tmp_path / "never"
    program.write_text(WORKERS)
    os.mkfifo(alive)
    os.mkfifo(never)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    given = [sys.executable, str(program), str(alive), str(never)]
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True, env=environment) as child, open(alive) as workers:
        assert workers.readline() == "waiting\n"
        child.send_signal(number)
        out, _ = child.communicate()
        assert workers.read().replace("waiting\n", "") == ""  # Returns when nobody holds the pipe any more.
    expected = (0, "interrupted True\n") if number == signal.SIGINT else (-number, "")
    assert (child.returncode, out) == expected
