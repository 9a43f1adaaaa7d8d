"""Displays of a run's progress: a live bar on a terminal, lines of text in a pipe, a log file or a notebook's log.

Rule: a display receives a sequence of `Moment`s and decides itself how often it draws.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from anytpu.report import moment as words
from anytpu.report.moment import Moment

REDRAW_S = 0.1
"""Minimum time between two drawings of the live bar; without it, a run of short steps would spend its time drawing."""
BAR_COLUMNS = 24
LINE_S = 10.0
"""Time after which a log gets another line within an epoch."""


class Display(abc.ABC):
    """A display of the moments of one run."""

    @abc.abstractmethod
    def show(self, moment: Moment) -> None:
        """Show a moment, or skip it if the previous one was shown very recently."""

    @abc.abstractmethod
    def end_epoch(self, moment: Moment) -> None:
        """Show the end of an epoch, or of an evaluation; never skipped."""

    @abc.abstractmethod
    def close(self, moment: Moment) -> None:
        """Show the last moment permanently and release the terminal. Closing twice does nothing."""


def open_display(console: Console, clock: Callable[[], float]) -> Display:
    """Return the display that suits a console: live on a terminal, lines elsewhere.

    Args:
        console: the console to draw on.
        clock: returns the time in seconds, as `time.monotonic` does.
    """
    return LiveDisplay(console, clock) if console.is_terminal else LineDisplay(console, clock)


class LiveDisplay(Display):
    """A bar and a line of metrics, redrawn in place."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        """Take over the last lines of the terminal."""
        self._clock = clock
        self._drawn_s = float("-inf")
        # No refresh thread: it would continue to draw after an exception in the middle of a fit.
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, moment: Moment) -> None:
        """Draw, at most every `REDRAW_S` seconds."""
        if self._clock() - self._drawn_s >= REDRAW_S:
            self.end_epoch(moment)

    def end_epoch(self, moment: Moment) -> None:
        """Draw now."""
        self._drawn_s = self._clock()
        self._live.update(draw(moment, self._live.console.width), refresh=True)

    def close(self, moment: Moment) -> None:
        """Draw once more and stop."""
        if self._live.is_started:
            self.end_epoch(moment)
            self._live.stop()


class LineDisplay(Display):
    """A line per epoch, and one every `LINE_S` seconds."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        """Start the clock; nothing is printed yet."""
        self._console = console
        self._clock = clock
        self._printed_s = clock()

    def show(self, moment: Moment) -> None:
        """Print a line if the previous one is `LINE_S` seconds old."""
        is_last = moment.step == moment.steps  # `end_epoch` is about to print the line of the whole epoch
        if self._clock() - self._printed_s >= LINE_S and not is_last:
            self._print(words.title(moment), words.steps_text(moment), moment)

    def end_epoch(self, moment: Moment) -> None:
        """Print the line of the epoch."""
        self._print(words.title(moment), "", moment)

    def close(self, moment: Moment) -> None:
        """Do nothing: every line is printed already."""

    def _print(self, title: str, steps: str, moment: Moment) -> None:
        self._printed_s = self._clock()
        parts = [title, steps, words.metrics_text(moment), words.speed_text(moment), words.time_text(moment)]
        self._console.print("  ".join(part for part in parts if part), soft_wrap=True)


def draw(moment: Moment, width: int = 80) -> RenderableType:
    """Return a moment as two lines for a terminal: the bar with its speed, and the metrics under it.

    Args:
        moment: the moment to draw.
        width: columns of the terminal; a narrow one gets a shorter bar, or none.
    """
    title, percent = words.title(moment), "" if moment.fraction is None else f"{moment.fraction:4.0%}"
    texts = [text for text in (percent, words.speed_text(moment), words.time_text(moment)) if text]
    room = min(BAR_COLUMNS, width - len(" ".join([title, "", *texts])) - 1)
    bars = [Bar(total=1.0, completed=moment.fraction or 0.0, width=room)] if room > 0 else []
    line = Table.grid(padding=(0, 1, 0, 0))
    for _ in (title, *bars, *texts):
        line.add_column(no_wrap=True)
    line.add_row(title, *bars, *texts)
    metrics = Text(words.metrics_text(moment), no_wrap=True, overflow="ellipsis")
    return Group(line, Padding(metrics, (0, 0, 0, len(title) + 1)))
