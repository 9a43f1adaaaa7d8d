"""`ProgressBar`: a Keras callback that shows the progress of `fit`.

This file imports Keras; only code that is about to train imports this file.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import keras
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from anytpu import units

_REDRAW_S = 0.1
"""Minimum time between two drawings; without it, a run of short steps would spend its time drawing."""
_BAR_COLUMNS = 24
_TIMED_CALLS = 20


class ProgressBar(keras.callbacks.Callback):
    """Progress of a fit on arrays, with its live loss, its metrics, its speed and the remaining time.

    On a terminal it is one bar over all epochs; in a pipe or a log file it is a line per epoch. Pass `verbose=0` too,
    or Keras prints its own bar as well.

    Rule: the first call of a run compiles, and so does the first with fewer rows. So the speed is that of the last
    calls after the first, without the slowest one.

    Args:
        console: the console to draw on.
        examples: number of examples in an epoch.
        clock: returns the time in seconds, as `time.monotonic` does.

    Example:
        >>> import numpy as np
        >>> from anytpu.report.terminal import open_console
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.ones((8, 2), "float32")
        >>> with ProgressBar(open_console(), len(x)) as bar:  # doctest: +ELLIPSIS
        ...     history = model.fit(x, x[:, :1], verbose=0, callbacks=[bar])
        epoch 1/1  loss ...
    """

    async_safe = True
    """Keras may call it late, and does not change its calls of the compiled loop for it."""

    def __init__(self, console: Console, examples: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare a bar; nothing is shown before a run begins."""
        super().__init__()
        self._console, self._examples, self._clock = console, examples, clock
        # No refresh thread: it would continue to draw after an exception in the middle of a fit.
        self._live = Live(console=console, auto_refresh=False)
        self._drawn_s = -math.inf
        self._epoch = self._step = 0
        self._last: tuple[float, int] | None = None
        """Time at the end of the last call, and the steps completed then."""
        self._calls: deque[tuple[float, int]] = deque(maxlen=_TIMED_CALLS)
        """Seconds and steps of the last calls."""

    def __enter__(self) -> ProgressBar:
        """Take over the last lines of a terminal."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Release the terminal."""
        self._live.stop()

    def on_train_begin(self, logs: Any = None) -> None:
        """Start the clock."""
        self._start_s = self._clock()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start an epoch."""
        self._epoch, self._step = epoch, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the steps up to `batch`, and draw, at most every `_REDRAW_S` seconds."""
        self._step, now_s = batch + 1, self._clock()
        if self._last is not None:
            self._calls.append((now_s - self._last[0], self._completed - self._last[1]))
        self._last = (now_s, self._completed)
        if self._live.is_started and now_s - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now_s
            self._live.update(self._drawn(logs or {}), refresh=True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Show the epoch's metrics."""
        self._step = self._steps
        if self._live.is_started:
            self._live.update(self._drawn(logs or {}), refresh=True)
        else:
            self._console.print("  ".join([self._title, _metrics(logs or {}), *self._pace()]), soft_wrap=True)

    @property
    def _completed(self) -> int:
        return self._epoch * self._steps + self._step

    @property
    def _steps(self) -> int:
        return (self.params or {})["steps"]

    @property
    def _title(self) -> str:
        epochs = (self.params or {})["epochs"]
        return f"epoch {self._epoch + 1:>{len(str(epochs))}}/{epochs}"

    @property
    def _total(self) -> int:
        return (self.params or {})["epochs"] * self._steps

    def _pace(self) -> list[str]:
        """Return the speed, and the remaining time or, once the run is complete, the total time."""
        now_s, left = self._clock(), self._total - self._completed
        calls = sorted(self._calls, key=lambda call: call[0] / call[1])
        timed = calls[:-1] if len(calls) > 2 else calls
        step_s = sum(duration_s for duration_s, _ in timed) / max(1, sum(steps for _, steps in timed))
        speed = [units.format_rate(self._examples / self._steps / step_s, "examples")] if step_s else []
        if not left:
            return [*speed, f"in {units.format_seconds(now_s - self._start_s)}"]
        return [*speed, f"{units.format_seconds(round(left * step_s))} left"] if speed else ["compiling"]

    def _drawn(self, metrics: Mapping[str, Any]) -> RenderableType:
        """Return two lines for a terminal: the bar with its speed, and the metrics under it."""
        share = self._completed / self._total
        texts = [f"{share:4.0%}", *self._pace()]
        # A narrow terminal gets a shorter bar, or none.
        room = min(_BAR_COLUMNS, self._console.width - len(" ".join([self._title, "", *texts])) - 1)
        cells = [self._title, *([Bar(1.0, share, room)] if room > 0 else []), *texts]
        line = Table.grid(padding=(0, 1, 0, 0))
        for _ in cells:
            line.add_column(no_wrap=True)
        line.add_row(*cells)
        metrics_line = Text(_metrics(metrics), no_wrap=True, overflow="ellipsis")
        return Group(line, Padding(metrics_line, (0, 0, 0, len(self._title) + 1)))


def _metrics(logs: Mapping[str, Any]) -> str:
    """Format the metrics of an epoch in one line, the loss first."""
    ordered = sorted(logs.items(), key=lambda item: item[0] != "loss")
    return "  ".join(f"{name} {float(value):.4f}" for name, value in ordered)
