"""Tables on a mesh of eight devices, beside virtual cores."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from forked import python
from mesh_checks import EIGHT_DEVICES


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict:
    program = Path(__file__).with_name("mesh_program.py")
    done = subprocess.run(
        [*python(), str(program), str(tmp_path_factory.mktemp("runs"))],
        env={**os.environ, **EIGHT_DEVICES},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "case", ["in_fit", "clipped_by_norm", "in_a_layout", "from_a_checkpoint", "in_a_loop", "in_an_estimator"]
)
def test_equal_to_virtual_cores_in_float64(results: dict, case: str):
    assert results["differences"][case] < 1e-9


def test_each_device_holds_its_rows(results: dict):
    assert results["rows"] == [8] * 8


def test_large_tables_and_their_slots_are_made_in_their_shards(results: dict):
    assert results["large"] == [2**14] * 32
