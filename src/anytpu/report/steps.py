"""Progress of work in named steps: on a terminal one changing line with the elapsed time, elsewhere a line per step.

Rule: progress goes to standard error, so that the results on standard output can be piped.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from anytpu.report.terminal import is_ascii_only, open_console
from anytpu.units import format_seconds

DRAWS_PER_S = 8


class StepProgress:
    """A display of the current step: a context manager that is called with the name of each step.

    Args:
        console: the console to draw on; None: standard error.
        clock: returns the time in seconds, as `time.monotonic` does.

    Example:
        >>> with StepProgress() as progress:
        ...     progress("sequential/train on v3-8")
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or open_console(sys.stderr)
        self._clock = clock
        self._start_s = clock()
        self._line, self._count = "", 0
        self._spinner = Spinner("line" if is_ascii_only(self._console) else "dots")
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=DRAWS_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> StepProgress:
        """Take over the last line of a terminal."""
        self._start_s = self._clock()
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Erase the line and release the terminal."""
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, line: str) -> None:
        """Show the name of the step that starts now."""
        self._line, self._count = line, self._count + 1
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)

    def _draw(self) -> Table:
        row = Table.grid(padding=(0, 1, 0, 0))
        for _ in range(3):
            row.add_column(no_wrap=True)
        line = f"{self._count}. {self._line}" if self._count else "getting ready"
        elapsed = format_seconds(math.floor(self._clock() - self._start_s))
        row.add_row(self._spinner, Text(line, overflow="ellipsis"), Text(elapsed, style="dim"))
        return row
