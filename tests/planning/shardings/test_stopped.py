"""Ctrl-C in a search of layouts: a real signal, while the TPU compiler works."""

import os
import signal
import threading

import jax
import pytest

import anytpu as tpu
from anytpu import program as programs
from anytpu.planning.shardings.automatic import choose_layout


def step_of(name: str):
    """Return a training step of this name; its weights have shapes and no values."""

    def step(weights, x):
        slopes = jax.grad(lambda weights: ((jax.nn.relu(x @ weights[0]) @ weights[1]) ** 2).mean())(weights)
        return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, slopes), ()

    step.__name__ = name
    spec = jax.ShapeDtypeStruct
    weights = spec((512, 2048), "float32"), spec((2048, 512), "float32")
    return programs.of(step, (weights, spec((256, 512), "float32")))


def test_a_search_that_is_stopped_keeps_its_estimates():
    """The first line of progress is the estimate of all; the signal comes during the compilations after it."""

    def stop(line: str) -> None:
        if " layouts on " in line:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    found = tpu.find_layouts(step_of("stopped"), tpu="v5e-8", use_cache=False, progress=stop)
    assert found.notes[-1] == "The search was stopped: layouts that were not compiled yet are only estimated."
    assert "not compiled, because the search was stopped." in {sharding.reason for sharding in found}


def test_a_choice_that_is_stopped_raises(tmp_path, monkeypatch):
    """A fit ends then, as at any other Ctrl-C."""
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(tmp_path))
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        choose_layout(step_of("chosen"), "v5p-16", lambda line: timer.start())
        timer.join()  # The signal must not reach another test.
