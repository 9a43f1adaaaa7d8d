"""Each kind of fault is found, by a reader that has it; the same seed draws the same cases."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz import faulty
from fuzz.battery import Battery, batteries
from fuzz.damage import BYTES, JSON, TEXT, ZIP, Damage, zipped
from fuzz.running import Runner, summary


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("kept")) as found:
        yield found


@pytest.mark.parametrize("battery", faulty.BATTERIES, ids=lambda battery: battery.name)
def test_each_fault_is_found(battery: Battery, runner: Runner):
    result = runner.run(battery, 2)
    assert result.outcomes == {battery.name: 2}
    assert result.is_clean == (battery.name == "refused")
    assert len(result.kept) == (0 if result.is_clean else 2)
    assert all(Path(path).read_bytes().startswith(b"the content!") for path in result.kept)
    assert len(summary([result])) == (2 if result.is_clean else 3)


@pytest.mark.parametrize("battery", faulty.IN_BLOCKS, ids=lambda battery: battery.name)
def test_each_fault_is_found_in_blocks(battery: Battery, runner: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fuzz.running.BLOCK", 3)
    result = runner.run(battery, 7)
    assert result.outcomes == {battery.name.split()[0]: 7}


@pytest.mark.parametrize("damage", dict.fromkeys([*BYTES, *TEXT, *JSON, *ZIP]), ids=lambda damage: damage.__name__)
def test_damage_never_fails(damage: Damage):
    contents = [b"", b"x", b'{"a": [1, {"b": 2}]}', zipped({"a": b"1" * 50, "b.json": b"[1, 2]"}), bytes(300)]
    for number in range(40):
        for content in contents:
            assert isinstance(damage(content, random.Random(number)), bytes)


def test_the_same_seed_draws_the_same_cases():
    for battery in batteries().values():
        if battery.share == 1:
            samples = battery.samples()
            assert [battery.case(3, number, samples) for number in range(5)] == [
                battery.case(3, number, samples) for number in range(5)
            ]
