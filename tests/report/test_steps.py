from __future__ import annotations

import io

from rich.console import Console

from anytpu.report.steps import StepProgress
from anytpu.report.terminal import open_console


def test_a_line_each_in_a_log():
    log = io.StringIO()
    with StepProgress(open_console(log)) as progress:
        progress("small/train on v2-8 " + "x" * 100)
        progress("small/train on v3-8 [1]")
    assert log.getvalue() == "small/train on v2-8 " + "x" * 100 + "\nsmall/train on v3-8 [1]\n"


def test_a_line_that_changes_on_a_terminal():
    screen, now_s = io.StringIO(), iter(range(0, 100, 2))
    console = Console(file=screen, force_terminal=True, width=60, markup=False)
    with StepProgress(console, lambda: float(next(now_s))) as progress:
        progress("small/train on v2-8")
        progress("small/train on v3-8")
    drawn = screen.getvalue()
    assert "2. small/train on v3-8" in drawn
    assert drawn.rstrip().endswith("\x1b[2K")  # the line is taken away
    assert "\x1b[?25h" in drawn  # and the cursor is there again


def test_an_error_gives_the_terminal_back():
    screen = io.StringIO()
    steps = StepProgress(Console(file=screen, force_terminal=True, width=60))
    try:
        with steps:
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert "\x1b[?25h" in screen.getvalue()
