"""`ProgressBar`: a Keras callback that shows the progress of `fit`, `evaluate` and `predict`.

Idea: the callback observes the run and a display draws it. It sets `async_safe`, so it never forces the compiled loop
to run one step per call: the loop calls it between its own calls, at least twice a second.

This file imports Keras; only code that is about to train imports this file.
"""

from __future__ import annotations

import atexit
import dataclasses
import numbers
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
from rich.console import Console

from anytpu.report.displays import Display, open_display
from anytpu.report.moment import Moment, Phase
from anytpu.report.pace import StepRate
from anytpu.report.terminal import open_console


class ProgressBar(keras.callbacks.Callback):
    """Progress of a Keras model with its live loss, its metrics, its speed and the remaining time.

    On a terminal it is one bar over all epochs; in a pipe or a log file it is a line per epoch, and one every ten
    seconds. Pass `verbose=0` too, or Keras prints its own bar as well.

    Args:
        examples: number of examples in an epoch, for a speed in examples per second; None: steps per second.
        console: the console to draw on; None: standard output.
        clock: returns the time in seconds.

    Example:
        >>> import numpy as np
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.ones((8, 2), "float32")
        >>> history = model.fit(x, x[:, :1], verbose=0, callbacks=[ProgressBar(examples=len(x))])  # doctest: +ELLIPSIS
        epoch 1/1  loss ...
    """

    async_safe = True
    """Keras may call it from a thread, and does not change its calls of the compiled loop for it."""

    def __init__(
        self,
        examples: int | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a bar; nothing is shown before a run begins."""
        super().__init__()
        self._examples = examples
        self._console = console
        self._clock = clock
        # Keras calls on_*_batch_end from several threads, in any order.
        self._lock = threading.Lock()
        self._display: Display | None = None
        self._moment = Moment("training", finished=True)
        self._rate = StepRate()
        self._start_s = 0.0
        self._first_epoch = 0

    def close(self) -> None:
        """Release the terminal. A run that ends does so itself; call this after a run that raised."""
        atexit.unregister(self.close)
        with self._lock:
            self._set(finished=True)
            if self._display is not None:
                self._display.close(self._moment)
            self._display = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the bar of a fit."""
        self._begin(Moment("compiling", epochs=self._parameter("epochs"), steps=self._parameter("steps")))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start an epoch; the first call defines the start of the fit, which depends on `initial_epoch`."""
        if not self._moment.epoch:
            self._first_epoch = epoch
        self._show(epoch=epoch + 1, step=0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the steps up to `batch`."""
        self._count(batch + 1, "training", logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Show the epoch's metrics, including those of the validation."""
        with self._lock:
            steps = self._moment.steps or self._moment.step
            self._set(step=steps, steps=steps, metrics=_scalars(logs), phase="training")
            if self._display is not None:
                self._display.end_epoch(self._moment)

    def on_train_end(self, logs: Any = None) -> None:
        """Close the bar of a fit."""
        self.close()

    def on_test_begin(self, logs: Any = None) -> None:
        """Open the bar of an evaluation, or show that a fit validates."""
        if self._is_in_fit:
            self._show(phase="validating")
        else:
            self._begin(Moment("evaluating", steps=self._parameter("steps")))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the steps of an evaluation."""
        if not self._is_in_fit:
            self._count(batch + 1, "evaluating", logs)

    def on_test_end(self, logs: Any = None) -> None:
        """Close the bar of an evaluation, or return to the fit."""
        if self._is_in_fit:
            self._show(phase="training")
        else:
            self._end_epochless(logs)

    def on_predict_begin(self, logs: Any = None) -> None:
        """Open the bar of a prediction."""
        self._begin(Moment("predicting", steps=self._parameter("steps")))

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the steps of a prediction; its outputs are not metrics."""
        self._count(batch + 1, "predicting", None)

    def on_predict_end(self, logs: Any = None) -> None:
        """Close the bar of a prediction."""
        self._end_epochless(None)

    @property
    def _is_in_fit(self) -> bool:
        return bool(self._moment.epochs) and not self._moment.finished

    def _parameter(self, name: str) -> Any:
        return (self.params or {}).get(name)

    def _begin(self, moment: Moment) -> None:
        self.close()
        self._rate, self._start_s, self._first_epoch = StepRate(), self._clock(), 0
        self._moment = moment
        self._display = open_display(self._console or open_console(), self._clock)
        atexit.register(self.close)
        self._show()

    def _show(self, **changes: Any) -> None:
        with self._lock:
            self._set(**changes)
            if self._display is not None:
                self._display.show(self._moment)

    def _count(self, step: int, phase: Phase, logs: Any) -> None:
        if step > self._moment.step:
            self._show(step=step, phase=phase, metrics=_scalars(logs))

    def _set(self, **changes: Any) -> None:
        """Change the moment and its derived fields: the fraction, the speed, the remaining time."""
        moment = dataclasses.replace(self._moment, **changes)
        past_epochs, epochs = max(moment.epoch - 1 - self._first_epoch, 0), max(moment.epochs - self._first_epoch, 1)
        now_s = self._clock()
        completed = past_epochs * (moment.steps or 0) + moment.step
        if completed:
            self._rate.note(now_s, completed)
        total = moment.steps and moment.steps * epochs
        self._moment = dataclasses.replace(
            moment, elapsed_s=now_s - self._start_s, **self._speed(moment), **self._distance(completed, total)
        )

    def _speed(self, moment: Moment) -> dict[str, Any]:
        steps_per_s = self._rate.steps_per_s
        if self._examples is None or not moment.steps or not moment.epochs:
            return {"per_second": steps_per_s, "unit": "steps"}
        examples_per_s = steps_per_s and steps_per_s * self._examples / moment.steps
        return {"per_second": examples_per_s, "unit": "examples"}

    def _distance(self, completed: int, total: int | None) -> dict[str, Any]:
        steps_per_s = self._rate.steps_per_s
        remaining_s = (total - completed) / steps_per_s if total and steps_per_s else None
        return {"fraction": min(completed / total, 1.0) if total else None, "remaining_s": remaining_s}

    def _end_epochless(self, logs: Any) -> None:
        with self._lock:
            self._set(metrics=_scalars(logs))
            if self._display is not None:
                self._display.end_epoch(self._moment)
        self.close()


def _scalars(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the scalar logs, the loss first and those of the validation last."""
    numbers_only = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, numbers.Real)}
    return dict(sorted(numbers_only.items(), key=lambda item: (item[0].startswith("val_"), not _is_loss(item[0]))))


def _is_loss(name: str) -> bool:
    return name.removeprefix("val_") == "loss"
