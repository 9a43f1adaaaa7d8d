from __future__ import annotations

import contextlib
import io

import pytest
from rich.console import Console

from anytpu.report.terminal import hang, open_console, say

LONG = "a sentence of several words that is longer than thirty columns"


def test_a_log_gets_lines_in_one_piece():
    file = io.StringIO()
    say(Console(file=file, width=30), LONG)
    assert file.getvalue() == f"{LONG}\n"


def test_a_terminal_gets_them_wrapped_between_words():
    file = io.StringIO()
    say(Console(file=file, width=30, force_terminal=True, color_system=None), LONG)
    assert file.getvalue() == "a sentence of several words \nthat is longer than thirty \ncolumns\n"


def test_text_is_taken_as_it_is():
    file = io.StringIO()
    open_console(file).print("a[0] [red]b[/red] :smile:")
    assert file.getvalue() == "a[0] [red]b[/red] :smile:\n"


@pytest.mark.parametrize(
    ("encoding", "text"), [("ascii", "##. 2 us, gr\\xf6\\xdfe -~"), ("utf-8", "█▌▄ 2 µs, größe ─…")]
)
def test_drawings_by_encoding(encoding: str, text: str):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    say(open_console(file), "█▌▄ 2 µs, größe ─…")
    file.flush()
    assert file.buffer.getvalue().decode(encoding) == f"{text}\n"  # pyright: ignore[reportAttributeAccessIssue]


def test_standard_output_is_looked_up_at_each_print(capsys: pytest.CaptureFixture[str]):
    console = open_console()
    say(console, "first")
    assert capsys.readouterr().out == "first\n"
    with capsys.disabled():
        other = io.StringIO()
        with contextlib.redirect_stdout(other):
            say(console, "second")
    assert other.getvalue() == "second\n"


def test_a_start_without_a_text():
    assert hang("GPU  ", "", 80) == ["GPU  "]
