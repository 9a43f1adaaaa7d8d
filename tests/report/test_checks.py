from __future__ import annotations

import io

import pytest
from rich.console import Console

from anytpu.report.checks import SystemCheck, check_lines, print_check, summary


def printed(check: SystemCheck, **keywords) -> str:
    file = io.StringIO()
    print_check(Console(file=file, width=50, **keywords), check)
    return file.getvalue()


def test_what_was_found_is_wrapped_and_a_command_is_not():
    check = SystemCheck(
        "failed", "libtpu", "4 TPU chips are here, and libtpu is not installed", "pip install 'anytpu[tpu]' --upgrade"
    )
    assert printed(check) == (
        "failed   libtpu         4 TPU chips are here, and\n"
        "                        libtpu is not installed\n"
        "                        type: pip install 'anytpu[tpu]' --upgrade\n"
    )


def test_a_path_is_never_broken():
    path = "/a/very/long/path/that/is/wider/than/the/terminal"
    assert check_lines(SystemCheck("ok", "disk", path), width=30)[0].plain == f"ok       disk           {path}"


def test_colours_only_on_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch):
    check = SystemCheck("ok", "disk", "fine")
    plain = "ok       disk           fine\n"
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert printed(check) == plain
    assert printed(check, force_terminal=True, color_system="standard").startswith("\x1b[32mok\x1b[0m")
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(check, force_terminal=True, color_system="standard") == plain


def test_summary_counts():
    checks = [
        SystemCheck("ok", "a", ""),
        SystemCheck("warning", "b", ""),
        SystemCheck("warning", "c", ""),
        SystemCheck("failed", "d", ""),
    ]
    assert summary(checks) == "1 ok, 2 warnings, 1 failed"
    assert summary(checks[:2]) == "1 ok, 1 warning"
    assert summary([]) == ""
