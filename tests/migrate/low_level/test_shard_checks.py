"""The checks of `shard_checks.py` on every kind of backend."""

from __future__ import annotations

from pathlib import Path

import pytest

import anytpu as tpu
from mesh_checks import failures_of_child
from migrate.low_level.shard_checks import CHECKS

SYSTEMS = [("virtual", 8), ("virtual", 1), ("twin", 3)]


@pytest.mark.parametrize(("kind", "cores"), SYSTEMS, ids=str)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_check(check, kind, cores):
    tpu.connect(kind, cores=cores)
    check()


@pytest.fixture(scope="module")
def mesh_failures() -> dict[str, str]:
    """What failed in a child process, in float64, by the name of the check."""
    return failures_of_child(Path(__file__).with_name("mesh_child.py"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", CHECKS)
def test_check_in_float64_on_a_mesh(check, mesh_failures):
    failure = mesh_failures.get(check)
    assert failure is None, failure
