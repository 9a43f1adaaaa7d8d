"""The page docs/start.md: its blocks run as one program, and print what it says."""

from __future__ import annotations

from pathlib import Path

from page_programs import check_page


def test_the_program_prints_what_the_page_says(tmp_path: Path):
    check_page("start", 3, tmp_path)
