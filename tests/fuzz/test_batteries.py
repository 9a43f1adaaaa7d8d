"""A sample of damaged files of each format: each is refused in words of ours or read right, under 1 GiB.

`scripts/fuzz` runs 2,000 of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.battery import Battery, batteries
from fuzz.running import Runner, summary

CASES = 50


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("kept")) as found:
        yield found


@pytest.mark.parametrize("battery", batteries().values(), ids=lambda battery: battery.name)
def test_damaged_files(battery: Battery, runner: Runner, tmp_path: Path):
    result = runner.run(battery, battery.count(CASES), seed=7)
    assert result.is_clean, "\n".join([*summary([result]), *result.kept])
