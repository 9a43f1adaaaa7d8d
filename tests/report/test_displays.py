from __future__ import annotations

import io

from rich.console import Console

from anytpu.report.displays import LINE_S, REDRAW_S, LineDisplay, LiveDisplay, draw, open_display
from anytpu.report.moment import Moment

MOMENT = Moment(
    "training",
    epoch=3,
    epochs=20,
    step=10,
    steps=23,
    fraction=0.5,
    metrics={"loss": 0.25, "accuracy": 0.75, "val_loss": 0.5, "val_accuracy": 0.625},
    per_second=12345.0,
    unit="examples",
    remaining_s=3.0,
)


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def terminal(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, legacy_windows=False)


def drawn(width: int) -> list[str]:
    console = terminal(width)
    console.print(draw(MOMENT, width))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_moment_is_two_lines():
    assert drawn(80) == [
        "epoch  3/20 ━━━━━━━━━━━━              50% 12,345 examples/s 3 s left",
        "            loss 0.2500  accuracy 0.7500  val_loss 0.5000  val_accuracy 0.6250",
    ]


def test_a_narrow_terminal_loses_bar_and_metrics_but_no_line():
    lines = drawn(50)
    assert len(lines) == 2
    assert all(len(line) <= 50 for line in lines)
    assert lines[0].endswith("50% 12,345 examples/s 3 s left")
    assert lines[0].startswith("epoch  3/20 ━")
    assert lines[1].endswith("…")


def test_a_very_narrow_one_has_no_bar():
    assert drawn(44)[0] == "epoch  3/20  50% 12,345 examples/s 3 s left"


def test_a_pipe_gets_lines_and_a_terminal_a_bar():
    clock = Clock()
    assert isinstance(open_display(Console(file=io.StringIO()), clock), LineDisplay)
    live = open_display(terminal(), clock)
    live.close(MOMENT)
    assert isinstance(live, LiveDisplay)


def test_lines_come_at_the_end_of_an_epoch_and_every_few_seconds():
    file, clock = io.StringIO(), Clock()
    display = LineDisplay(Console(file=file, width=40), clock)
    display.show(MOMENT)
    clock.now_s += LINE_S
    display.show(MOMENT)
    display.show(MOMENT)
    display.end_epoch(MOMENT)
    display.close(MOMENT)
    rest = "loss 0.2500  accuracy 0.7500  val_loss 0.5000  val_accuracy 0.6250  12,345 examples/s  3 s left"
    assert file.getvalue() == f"epoch  3/20  step 10/23  {rest}\nepoch  3/20  {rest}\n"


def test_the_bar_is_drawn_now_and_then_and_once_more_at_the_end():
    console, clock = terminal(), Clock()
    display = LiveDisplay(console, clock)
    display.show(MOMENT)
    once = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    clock.now_s += REDRAW_S / 2
    display.show(MOMENT)
    assert console.file.getvalue() == once  # pyright: ignore[reportAttributeAccessIssue]
    clock.now_s += REDRAW_S
    display.show(MOMENT)
    assert console.file.getvalue().count("epoch  3/20") == 2  # pyright: ignore[reportAttributeAccessIssue]
    display.close(MOMENT)
    display.close(MOMENT)
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is hidden once and shown once"
