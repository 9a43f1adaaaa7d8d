"""A process that is forked from one that used JAX has none of JAX's threads: each call says so at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
import anytpu as tpu
import keras
import numpy as np
from anytpu.errors import StrategyError

BEFORE = os.fork()
if BEFORE:
    os.waitpid(BEFORE, 0)
strategy = tpu.connect("virtual", cores=2)
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
model.fit(x, y, verbose=0)
print("trained", flush=True)
if BEFORE and not os.fork():
    calls = [
        lambda: model.fit(x, y, verbose=0),
        lambda: model.evaluate(x, y, verbose=0),
        lambda: model.predict(x, verbose=0),
        lambda: model.train_on_batch(x, y),
        lambda: model.predict_on_batch(x),
        lambda: strategy.run(lambda rows: rows, args=(x,)),
        lambda: tpu.connect("virtual", cores=4).run(lambda rows: rows, args=(x,)),
    ]
    try:
        for call in calls:
            try:
                call()
            except StrategyError as error:
                print(error, flush=True)
    finally:
        os._exit(0)
if BEFORE:
    os.wait()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_is_refused_at_once_and_one_forked_before_works():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    lines = done.stdout.splitlines()
    text = (
        "this process was forked from one in which JAX had started its devices. The threads of JAX do not exist here, "
        'so the call would wait for ever. Start the process anew, with multiprocessing.get_context("spawn"), or fork '
        "before tpu.connect()"
    )
    assert lines == [*["trained"] * 2, *[text] * 7], done.stderr
