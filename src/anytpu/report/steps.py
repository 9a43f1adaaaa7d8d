"""Progress of work in named steps: on a terminal one changing line with the elapsed time, elsewhere a line per step.

Rule: progress goes to standard error, so that the results on standard output can be piped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from anytpu.report.terminal import open_console


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
        self._count = 0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            get_time=clock,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("getting ready", total=None)

    def __enter__(self) -> StepProgress:
        """Take over the last line of a terminal."""
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Erase the line and release the terminal."""
        self._progress.stop()

    def __call__(self, line: str) -> None:
        """Show the name of the step that starts now."""
        self._count += 1
        self._progress.update(self._task, description=f"{self._count}. {line}")
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)
