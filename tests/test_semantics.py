"""docs/semantics.md speaks of every point, each test that it names exists, its differences are listed."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from source_tree import ROOT

PAGE = ROOT / "docs" / "semantics.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text().splitlines()
    if re.match(r"\| A\d", line)
]


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


def shown(answer: Any) -> str:
    raises = isinstance(answer, dict) and answer.get("raises")
    return f"`{raises or json.dumps(answer)}`"


def test_the_programs_that_differ_are_listed_with_their_reasons():
    lines = tomllib.loads((ROOT / "tests" / "tensorflow_lines.toml").read_text())["line"]
    golden = json.loads((ROOT / "tests" / "golden" / "lines.json").read_text())
    different = [line for line in lines if "here" in line]
    rows = [
        f"| {line['name']} | {shown(golden[line['name']])} | {shown(json.loads(line['here']))} | {line['reason']} |"
        for line in different
    ]
    page = PAGE.read_text()
    assert page.endswith("|---|---|---|---|\n" + "\n".join(rows) + "\n")
    assert f"lists {len(lines)} programs" in page
    assert f"{len(lines) - len(different)} answers are equal" in page
    assert f"These {len(different)} differ on purpose" in page
