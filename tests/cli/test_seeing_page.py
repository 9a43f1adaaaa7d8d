"""The page docs/seeing.md: its blocks run as one program, and print what they say."""

from __future__ import annotations

from pathlib import Path

from page_programs import check_page


def test_the_program_prints_what_the_page_says(tmp_path: Path):
    check_page("seeing", 2, tmp_path)
