"""The page docs/estimator.md: its program runs, and prints what it says."""

from __future__ import annotations

from page_programs import check_page


def test_the_program_prints_what_the_page_says(tmp_path):
    check_page("estimator", 1, tmp_path)
    assert (tmp_path / "digits" / "400").is_dir()
