from __future__ import annotations

import io

from rich.console import Console

from anytpu.report.terminal import hang, is_ascii_only, open_console, say

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


def test_an_encoding_without_blocks():
    assert is_ascii_only(Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii")))
    assert not is_ascii_only(Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8")))


def test_a_start_without_a_text():
    assert hang("GPU  ", "", 80) == ["GPU  "]
