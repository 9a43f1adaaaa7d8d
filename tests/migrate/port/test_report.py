from __future__ import annotations

import io

from rich.console import Console

from anytpu.migrate.port import Finding
from anytpu.migrate.port.report import diff_lines, finding_lines, print_diff, summary


def test_a_diff_on_a_terminal_has_colours():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", width=80, _environ={})
    print_diff(console, diff_lines("a\nb[0]\n", "a\nc\n", "x.py"))
    assert stream.getvalue() == (
        "\x1b[1m--- x.py\x1b[0m\n\x1b[1m+++ x.py\x1b[0m\n\x1b[36m@@ -1,2 +1,2 @@\x1b[0m\n a\n"
        "\x1b[31m-b[0]\x1b[0m\n\x1b[32m+c\x1b[0m\n"
    )


def test_a_diff_in_a_pipe_is_plain():
    stream = io.StringIO()
    lines = diff_lines("a\n" * 60, "a\n" * 59, "x" * 100)
    print_diff(Console(file=stream, _environ={}), lines)
    assert stream.getvalue().splitlines() == lines


def test_nothing_changed():
    assert diff_lines("a\n", "a\n", "x.py") == []


def test_findings_are_short_and_in_line():
    findings = [Finding(7, "x" * 60, "one two three four"), Finding(120, "y", "five")]
    assert finding_lines(findings, width=40) == [
        f"  line   7  {'x' * 37}...",
        "            one two three four",
        "  line 120  y",
        "            five",
    ]


def test_summary():
    assert summary(3, 2, 0, True) == "2 of 3 programs changed; nothing is left to port by hand; none was tried"
    assert summary(3, 2, 0, True, (1, 1)) == (
        "2 of 3 programs changed; nothing is left to port by hand; 1 ran, 1 did not run"
    )
    assert summary(5, 4, 0, True, (1, 1, 1, 1)).endswith("; 1 ran, 1 did not run, 1 had not ended, 1 only imported")
    assert summary(1, 0, 1, written=False) == "0 of 1 program would change; 1 place is left to port by hand"


def test_equal_advice_stands_once():
    findings = [Finding(1, "a", "leave out"), Finding(2, "b", "other"), Finding(3, "c", "leave out")]
    assert finding_lines(findings) == [
        "  line 1  a",
        "  line 3  c",
        "          leave out",
        "  line 2  b",
        "          other",
    ]
