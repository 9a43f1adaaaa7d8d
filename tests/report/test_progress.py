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


def bar_and_log(examples: int | None = None) -> tuple[ProgressBar, io.StringIO]:
    log = io.StringIO()
    return ProgressBar(examples, Console(file=log), Ticks()), log


def model_and_rows() -> tuple[keras.Model, np.ndarray, np.ndarray]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    return model, x, x[:, :1]


def masked(text: str) -> list[str]:
    """Return the lines without the numbers that depend on the run."""
    text = re.sub(r"\d+\.\d{4}|\d\.\d{3}e[+-]\d\d", "#", text)
    return re.sub(r"[\d.,]+ (examples/s|steps/s)|\bin [\d.]+ m?s|\d+ s left", r"@", text).splitlines()


def test_it_never_forces_one_step_a_call():
    assert ProgressBar.async_safe


def test_fit_prints_a_line_an_epoch():
    bar, log = bar_and_log(examples=ROWS)
    model, x, y = model_and_rows()
    history = model.fit(x, y, batch_size=BATCH, epochs=2, validation_split=0.2, verbose=0, callbacks=[bar])
    assert masked(log.getvalue()) == [
        "epoch 1/2  loss #  mae #  val_loss #  val_mae #  @  @",
        "epoch 2/2  loss #  mae #  val_loss #  val_mae #  @  @",
    ]
    shown = re.findall(r" loss (\d\.\d{4})", log.getvalue())
    assert shown == [f"{loss:.4f}" for loss in history.history["loss"]]
    assert "examples/s" in log.getvalue()


def test_without_examples_the_speed_is_in_steps():
    bar, log = bar_and_log()
    model, x, y = model_and_rows()
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[bar])
    assert "steps/s" in log.getvalue()


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_generator_of_unknown_length():
    bar, log = bar_and_log()
    model, x, y = model_and_rows()

    def batches():
        for _ in range(4):
            yield x[:BATCH], y[:BATCH]

    model.fit(batches(), shuffle=False, verbose=0, callbacks=[bar])
    assert masked(log.getvalue()) == ["epoch 1/1  loss #  mae #  @  @"]


def test_initial_epoch_is_where_the_run_starts():
    bar, log = bar_and_log()
    model, x, y = model_and_rows()
    model.fit(x, y, batch_size=BATCH, initial_epoch=3, epochs=5, verbose=0, callbacks=[bar])
    lines = log.getvalue().splitlines()
    assert [line[:9] for line in lines] == ["epoch 4/5", "epoch 5/5"]
    assert " left" in lines[0]
    assert re.search(r" in [\d.]+ m?s$", lines[1])


def test_evaluate_and_predict():
    bar, log = bar_and_log()
    model, x, y = model_and_rows()
    model.evaluate(x, y, batch_size=BATCH, verbose=0, callbacks=[bar])
    model.predict(x, batch_size=BATCH, verbose=0, callbacks=[bar])
    assert masked(log.getvalue()) == ["evaluating  loss #  mae #  @  @", "predicting  @  @"]


def test_one_bar_serves_many_runs():
    bar, log = bar_and_log()
    model, x, y = model_and_rows()
    model.fit(x, y, verbose=0, callbacks=[bar])
    model.evaluate(x, y, verbose=0, callbacks=[bar])
    model.fit(x, y, verbose=0, callbacks=[bar])
    assert [line[:10].rstrip() for line in log.getvalue().splitlines()] == ["epoch 1/1", "evaluating", "epoch 1/1"]


def test_a_terminal_gets_its_cursor_back_after_an_exception():
    class Failing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise RuntimeError("on purpose")

    file = io.StringIO()
    bar = ProgressBar(console=Console(file=file, force_terminal=True, width=80))
    model, x, y = model_and_rows()
    with pytest.raises(RuntimeError, match="on purpose"):
        model.fit(x, y, verbose=0, callbacks=[bar, Failing()])
    bar.close()
    bar.close()
    assert file.getvalue().count("\x1b[?25h") == 1
