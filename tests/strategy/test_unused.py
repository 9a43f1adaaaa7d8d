"""A strategy that was made and never used: the first fit outside of its scope says so, in a process of its own."""

from __future__ import annotations

import subprocess

from forked import python

MODEL = """
import warnings
import anytpu as tpu, keras, numpy as np
def fit():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="line")
    model.compile("sgd", "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0)
    for warning in caught:
        print(warning.filename, warning.message)
strategy = tpu.connect("v2-8")
"""


def printed(program: str) -> list[str]:
    run = subprocess.run([*python(), "-c", MODEL + program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_a_fit_outside_of_the_scope_warns_once():
    assert printed("fit(); fit()") == [
        "<string> 'line' trains as plain Keras does, on one device: <TPUStrategy: v2-8, 8 virtual cores> was made, and "
        "nothing has run in its scope. To train on its cores, make and compile the model inside: with "
        "strategy.scope():"
    ]


def test_a_used_strategy_is_not_named():
    assert printed("strategy.run(lambda: 1)\nfit()") == []
    assert printed("with strategy.scope(): pass\nfit()") == []


def test_a_strategy_that_is_gone_is_not_named():
    assert printed("del strategy\nfit()") == []
