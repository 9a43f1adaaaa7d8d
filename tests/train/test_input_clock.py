"""The share of an epoch that the device waited for batches: how it is measured, kept and said."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import StrategyError
from anytpu.train.input_clock import InputClock
from keras_oracle import classifier, rows

X, Y = rows(32)


class Bench:
    """A clock that the test moves, and a device that is done when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.clock = InputClock(lambda: self.newest, now=lambda: self.now_s)
        self.newest: Any = []

    def batches(self, seconds: list[float]):
        for duration_s in seconds:
            self.now_s += duration_s
            yield duration_s


def test_only_an_idle_device_waits():
    bench = Bench()
    bench.clock.begin_epoch()
    for duration_s in bench.clock.timed(bench.batches([1.0, 2.0])):
        bench.now_s += duration_s
    assert bench.clock.end_epoch() == 0.5
    assert bench.clock.notice == (
        "input-bound: 50 % of epoch {epoch} was spent waiting for batches, not computing. Make them ahead, "
        "tpu.pipeline.Dataset(...).prefetch(workers=2), do less in map, or pass arrays."
    )


def test_time_while_the_device_computes_costs_nothing():
    bench = Bench()
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: x @ y, x))
    multiply = loop.lower(np.eye(1000, dtype="f4")).compile()
    bench.clock.begin_epoch()
    bench.newest = multiply(np.eye(1000, dtype="f4"))  # a second or so
    assert list(bench.clock.timed(bench.batches([1.0, 2.0]))) == [1.0, 2.0]
    assert bench.clock.end_epoch() == 0
    assert bench.clock.notice is None
    jax.block_until_ready(bench.newest)
    list(bench.clock.timed(bench.batches([1.0])))
    assert bench.clock.end_epoch() == 0.25


@pytest.mark.parametrize(("waited_s", "ran_s"), [(0.3, 0.7), (0.05, 0.01), (0.0, 0.0)])
def test_a_little_waiting_is_not_worth_a_line(waited_s: float, ran_s: float):
    bench = Bench()
    bench.clock.begin_epoch()
    list(bench.clock.timed(bench.batches([waited_s])))
    bench.now_s += ran_s
    bench.clock.end_epoch()
    assert bench.clock.notice is None


def test_each_epoch_begins_anew():
    bench = Bench()
    shares = []
    for waited_s in (1.0, 0.0):
        bench.clock.begin_epoch()
        list(bench.clock.timed(bench.batches([waited_s])))
        bench.now_s += 1.0
        shares.append(bench.clock.end_epoch())
    assert shares == [0.5, 0.0]


def slow_batches():
    """Yield batches that take far longer to make than to train on."""
    noise = np.random.default_rng(0).random(10_000_000)
    while True:
        np.sort(noise)
        yield X, Y


def trained(verbose: int = 2, **arguments: Any) -> keras.Model:
    with tpu.connect("virtual", cores=2).scope():
        model = classifier()
    model.fit(verbose=verbose, **arguments)
    return model


def test_a_slow_input_says_so(capsys: pytest.CaptureFixture[str]):
    model = trained(x=slow_batches(), steps_per_epoch=3, epochs=3, initial_epoch=1, shuffle=False)
    captured = capsys.readouterr()
    shares = tpu.input_shares(model)
    assert len(shares) == 2
    assert 0.5 < shares[1] <= 1
    assert captured.err.splitlines()[-1] == (
        f"anytpu: input-bound: {round(100 * shares[1])} % of epoch 3 was spent waiting for batches, not computing. "
        "Make them ahead, tpu.pipeline.Dataset(...).prefetch(workers=2), do less in map, or pass arrays."
    )
    lines = captured.out.splitlines()
    assert [line for line in lines if line.startswith("Epoch")] == ["Epoch 2/3", "Epoch 3/3"]
    assert sum(line.startswith("3/3 - ") for line in lines) == 2, "Keras's own lines are whole"


def test_a_silent_fit_is_silent(capsys: pytest.CaptureFixture[str]):
    capsys.readouterr()
    model = trained(x=slow_batches(), steps_per_epoch=2, epochs=2, shuffle=False, verbose=0)
    captured = capsys.readouterr()
    assert (captured.out, [line for line in captured.err.splitlines() if "input" in line]) == ("", [])
    assert tpu.input_shares(model)[1] > 0.5


def test_arrays_on_the_device_wait_for_nothing():
    model = trained(x=X, y=Y, epochs=2, verbose=0)
    assert tpu.input_shares(model) == [0, 0]
    model.fit(X, Y, verbose=0)
    assert tpu.input_shares(model) == [0], "those of the newest fit"


def test_a_model_of_plain_keras():
    model = classifier()
    with pytest.raises(StrategyError) as caught:
        tpu.input_shares(model)
    assert str(caught.value) == (
        f"{model.name!r} was not compiled in the scope of a strategy, so it keeps no input waiting times: compile it "
        "in with strategy.scope():"
    )
