"""docs/semantics.md speaks of every point, and each test that it names exists."""

from __future__ import annotations

import re

from source_tree import ROOT

PAGE = ROOT / "docs" / "semantics.md"
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.read_text().splitlines()[9:]]


def test_every_point_is_there_in_order():
    assert [row[0].strip("| ") for row in ROWS] == [f"A{number}" for number in range(65)]


def test_each_says_what_became_of_it():
    for number, _, here, _ in ROWS:
        assert re.match(r"(kept|lifted|not applicable)\b", here), number


def test_the_tests_exist():
    missing = []
    for number, *_, tests in ROWS:
        for test in tests.strip(" |").split(", "):
            path, name = test.split("::")
            file = ROOT / path
            if not file.is_file() or f"def {name}(" not in file.read_text():
                missing.append(f"{number}: {test}")
    assert not missing, "\n".join(missing)
