from __future__ import annotations

import io
import re

import keras
import numpy as np
import pytest
from rich.console import Console

from anytpu.report.progress import ProgressBar

ROWS, BATCH = 100, 10


class Ticks:
    """A clock on which every look takes a hundredth of a second."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.01
        return self.now_s


def model_and_rows() -> tuple[keras.Model, np.ndarray, np.ndarray]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    return model, x, x[:, :1]


def masked(text: str) -> list[str]:
    """Return the lines without the numbers that depend on the run."""
    text = re.sub(r"\d+\.\d{4}", "#", text)
    return re.sub(r"[\d.,]+ (?=examples/s)|(?<=in )[\d.]+ m?s|\d+ (?=s left)", "@ ", text).splitlines()


def test_it_never_forces_one_step_a_call():
    assert ProgressBar.async_safe


def test_a_line_an_epoch_in_a_log():
    log = io.StringIO()
    model, x, y = model_and_rows()
    with ProgressBar(Console(file=log), ROWS, Ticks()) as bar:
        history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[bar])
    assert [line.rstrip() for line in masked(log.getvalue())] == [
        "epoch 1/2  loss #  mae #  @ examples/s  @ s left",
        "epoch 2/2  loss #  mae #  @ examples/s  in @",
    ]
    shown = re.findall(r" loss (\d\.\d{4})", log.getvalue())
    assert shown == [f"{loss:.4f}" for loss in history.history["loss"]]


def test_the_speed_is_that_of_the_steps_after_the_first():
    log, clock = io.StringIO(), Ticks()
    with ProgressBar(Console(file=log), examples=1000, clock=clock) as bar:
        bar.set_params({"epochs": 2, "steps": 10})
        bar.on_train_begin()
        bar.on_epoch_begin(0)
        clock.now_s = 60.0  # it compiles
        bar.on_train_batch_end(0)
        clock.now_s += 9.0
        bar.on_train_batch_end(9)
        clock.now_s -= 0.01
        bar.on_epoch_end(0, {"loss": 0.5})
    assert log.getvalue() == "epoch 1/2  loss 0.5000  99.9 examples/s  10 s left\n"


def test_a_call_that_compiles_does_not_lengthen_the_time_left():
    log, clock = io.StringIO(), Ticks()
    with ProgressBar(Console(file=log), examples=1000, clock=clock) as bar:
        bar.set_params({"epochs": 2, "steps": 10})
        bar.on_train_begin()
        bar.on_epoch_begin(0)
        for batch, duration_s in ((0, 60.0), (2, 2.0), (5, 3.0), (9, 90.0)):  # the last batch has fewer rows
            clock.now_s += duration_s
            bar.on_train_batch_end(batch)
        bar.on_epoch_end(0, {"loss": 0.5})
    assert log.getvalue() == "epoch 1/2  loss 0.5000  99.6 examples/s  10 s left\n"


def test_a_bar_on_a_terminal():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    model, x, y = model_and_rows()
    with ProgressBar(console, ROWS, Ticks()) as bar:
        model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[bar])
    last = screen.getvalue().rpartition("epoch 2/2 ")[2]
    assert re.match(r"━{24} 100% [\d,.]+ examples/s in [\d.]+ m?s *\n {10}loss \d\.\d{4}  mae \d\.\d{4}", last)


def test_a_terminal_gets_its_cursor_back_after_an_exception():
    class Failing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise RuntimeError("on purpose")

    file = io.StringIO()
    model, x, y = model_and_rows()
    with (
        pytest.raises(RuntimeError, match="on purpose"),
        ProgressBar(Console(file=file, force_terminal=True, width=80), ROWS) as bar,
    ):
        model.fit(x, y, verbose=0, callbacks=[bar, Failing()])
    assert file.getvalue().count("\x1b[?25h") == 1
